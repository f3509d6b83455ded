"""Decide the format of a topic's values in the target.

Bytes stay bytes and columns stay columns if the target supports them. Otherwise, or if bytes are to
become columns again, values are converted. The caller provides the conversion, because the log does
not know formats such as JSON.
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
    """The conversion of a topic's batches to those of its copy."""

    source: TopicInfo
    conversion: Conversion | None = None

    @property
    def schema(self) -> pa.Schema | None:
        """Schema of the target topic; None for bytes."""
        return self.source.schema if self.conversion is None else self.conversion.schema

    @property
    def type(self) -> pa.DataType:
        """Type of the column `value` in the target."""
        return value_type(self.schema)

    def written(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the source; fields missing in older records become null."""
        latest = upgrade(columns, value_type(self.source.schema))
        if self.conversion is None:
            return latest
        values = self.conversion.convert(latest.column("value"))
        return latest.set_column(2, pa.field("value", self.type), values)

    def read_back(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the target in the latest schema, for comparison."""
        return upgrade(columns, self.type)


def form_of(topic: TopicInfo, target: MovedLog, conversions: Conversions) -> BatchConversion:
    """Return the conversion for a topic. Raises InvalidTopic if the target cannot store it."""
    conversion = conversions(topic, target.has_columns)
    if conversion is None and topic.schema is not None and not target.has_columns:
        raise InvalidTopic(
            f"topic {topic.name!r} is typed (columns {', '.join(topic.schema.names)}), but "
            f"{target.name} has topics of bytes only; choose other topics with --topics, or write "
            f"its values to a topic of bytes and move that"
        )
    return BatchConversion(topic, conversion)
