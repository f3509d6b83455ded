"""Formats of values that other programs read and write: JSON, Avro, Protobuf, MessagePack.

The type of a value and its form in the log are independent:

    objects ── RowType ── struct column ── Wire ── bytes
               the type                    the form

A type is declared once, in `app.topic(value=…)`, and determines the topic's columns in any form. A
form is chosen by `serde=` and depends on no class: it converts a struct column to a column of bytes
and back. JSON can also make objects from bytes without columns between them, which is faster.

Optional packages (protobuf, fastavro, confluent-kafka) are imported only here and in
changelog/kafka.
"""
