"""From a frame to the batch that readers get."""

from __future__ import annotations

from changelog.embedded.frame import decode, payload_bytes
from changelog.embedded.segment import LocatedFrame
from changelog.records import Batch, TopicPartition
from changelog.schema import ValueSchemas, upgrade


def batch_of(frame: LocatedFrame, partition: TopicPartition, schemas: ValueSchemas) -> Batch:
    """The records of a data frame, their values as the latest schema has them.

    Raises CorruptLog.
    """
    header, where = frame.header, frame.where
    payload = payload_bytes(frame.data, frame.position, header, where)
    columns = decode(header, payload, schemas.type_of(header.schema_id, where), where)
    columns = upgrade(columns, schemas.latest_type)
    sparse, base = None, header.base_offset
    if columns.schema.names[-1] == "offset":
        sparse = columns.column("offset")
        base = int(sparse[0].as_py())
        columns = columns.select(columns.schema.names[:-1])
    topic, number = partition
    return Batch(topic, number, base, columns, header.leader_epoch, sparse)
