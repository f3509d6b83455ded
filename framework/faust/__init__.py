"""Faust apps on a Strandline log: `faust.App("orders", broker="strandline:///data/log")`.

The log is a folder, a served log, or a Kafka cluster (`strandline+kafka://host:9092`).

Faust finds this package by the entry points `faust.transports` and `faust.stores`. The parts:

    transport.py      the classes that Faust creates for the URL
    consumer.py       fetches records, joins the group; commits by committing_consumer.py
    producer.py       sends records, or keeps them until the commit of their source record
    store.py          tables: our engine, restored by position
    table_changelog.py  its changelog topic, to which Faust sends nothing
    table_backup.py   backups of single partitions
    declarations.py   how tables are written, recorded for other readers
    ledger.py         the effects of each record until its commit, and which may be committed
    overlay.py        uncommitted values of a table partition
    commit.py         outputs, changelogs and offsets in one transaction
    failures.py       records whose agent raised
    restarts.py       agents that go on afterwards, on streams (record_stream.py) that are kept
    record_event.py   events whose block or `ack` counts once, and not if it fails

A record's effects (sends and table writes) are kept in memory under the record until it is
acknowledged. A commit takes acknowledged records, none of which depends on one that is not, and
writes their effects and offsets in one transaction. Table values reach the engine afterwards.
"""
