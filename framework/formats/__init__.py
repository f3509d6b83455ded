"""The forms of values that others read and write: JSON, Avro, Protobuf, MessagePack.

What a value *is* (its type) and what it *looks like* in the log (its form) are two things:

    objects ── RowType ── struct column ── Wire ── bytes
               the type                    the form

A type is named once, in `app.topic(value=…)`, and gives a topic its columns, whatever the form. A form
is named by `serde=` and knows nothing of classes: it turns a struct column into a column of bytes, and
back. JSON can also make objects from bytes without columns between them, which is quicker.

Packages that not everybody has (protobuf, fastavro, confluent-kafka) are imported here and in
changelog/kafka only.
"""
