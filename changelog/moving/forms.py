"""In which form the values of a topic are kept in the target. Decided here, and nowhere else.

Bytes stay bytes, and columns columns. Where the target has no columns, or is to get some again, values are
converted; how, the caller says, since forms are no matter of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from strandline.changelog.errors import InvalidTopic
from strandline.changelog.moving.selection import Conversion, Conversions, MovedLog
from strandline.changelog.records import TopicInfo
from strandline.changelog.schema import upgrade, value_type


@dataclass(frozen=True)
class BatchConversion:
    """How batches of a topic become those of its copy."""

    source: TopicInfo
    conversion: Conversion | None = None

    @property
    def schema(self) -> pa.Schema | None:
        """Of the topic in the target."""
        return self.source.schema if self.conversion is None else self.conversion.schema

    @property
    def type(self) -> pa.DataType:
        """Of the column `value` there."""
        return value_type(self.schema)

    def written(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the source as it is appended there; fields that older records lack are null."""
        latest = upgrade(columns, value_type(self.source.schema))
        if self.conversion is None:
            return latest
        values = self.conversion.convert(latest.column("value"))
        return latest.set_column(2, pa.field("value", self.type), values)

    def read_back(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the target, to be compared with that."""
        return upgrade(columns, self.type)


def form_of(topic: TopicInfo, target: MovedLog, conversions: Conversions) -> BatchConversion:
    """The form of a topic's values in the target. Raises InvalidTopic if there is none."""
    conversion = conversions(topic, target.has_columns)
    if conversion is None and topic.schema is not None and not target.has_columns:
        raise InvalidTopic(
            f"topic {topic.name!r} is typed (columns {', '.join(topic.schema.names)}), and "
            f"{target.name} has topics of bytes only; choose others with --topics, or write its "
            f"values to a topic of bytes and move that"
        )
    return BatchConversion(topic, conversion)
