"""In which form the values of a topic are kept in the target. Decided here, and nowhere else."""

from __future__ import annotations

import pyarrow as pa

from changelog.errors import InvalidTopic
from changelog.moving.selection import Place
from changelog.records import TopicInfo
from changelog.schema import upgrade, value_type


class AsTheyAre:
    """Bytes stay bytes, and columns the same columns; those of older versions become the latest's."""

    def __init__(self, topic: TopicInfo) -> None:
        self.schema = topic.schema
        """Of the topic in the target."""
        self.type = value_type(topic.schema)
        """Of the column `value` there."""

    def __call__(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the source (or one read back) as the target has it."""
        return upgrade(columns, self.type)


def form_of(topic: TopicInfo, target: Place) -> AsTheyAre:
    """The form of a topic's values in the target. Raises InvalidTopic if there is none."""
    if topic.schema is not None and not target.has_columns:
        raise InvalidTopic(
            f"topic {topic.name!r} is typed (columns {', '.join(topic.schema.names)}), and "
            f"{target.name} has topics of bytes only; choose others with --topics, or write its "
            f"values to a topic of bytes and move that"
        )
    return AsTheyAre(topic)
