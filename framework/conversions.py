"""Typed values that are moved between a log with columns and a log of bytes only (Kafka).

In a log of bytes, typed values are JSON, the form that apps use there by default. Values with a
form of their own (`serde=`) are bytes in both logs and stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pyarrow as pa

from strandline.changelog.moving import Conversion
from strandline.changelog.records import TopicInfo
from strandline.framework.formats.choice import value_codec
from strandline.framework.formats.schema import RowType, is_typed
from strandline.framework.formats.wire import SerdeUse, WireCodec
from strandline.framework.topic import Topic


class Forms:
    """Conversions of the values of each topic; see `changelog.moving.Conversions`.

    A log of bytes does not record the columns of its JSON values; declared topics do.
    """

    def __init__(self, declared: Iterable[Topic[Any, Any]] = ()) -> None:
        self._kinds = {
            topic.name: topic.kind
            for topic in declared
            if topic.serde is None and is_typed(topic.kind)
        }

    def __call__(self, topic: TopicInfo, columns: bool) -> Conversion | None:
        if topic.schema is not None and not columns:
            return Conversion(None, _json(topic.schema, topic.name).from_columns)
        if topic.schema is None and columns and topic.name in self._kinds:
            kind = self._kinds[topic.name]
            return Conversion(RowType(kind).schema, _json(kind, topic.name).to_columns)
        return None


def _json(kind: type | pa.Schema, topic: str) -> WireCodec:
    """Return the codec of values of that type in a log without columns."""
    return cast("WireCodec", value_codec(kind, None, SerdeUse(topic), columns=False))
