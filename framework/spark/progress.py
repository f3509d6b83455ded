"""Lag of a running query, from the progress that Spark reports.

Spark gives sources in Python no metrics of their own. Its progress has the offsets at which the last
batch ended and at which the log ended then (from Spark 4.2 on), and the lag is their difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.changelog.decoding import json_value
from strandline.changelog.errors import UNREADABLE, StrandlineError
from strandline.changelog.records import TopicPartition
from strandline.framework.spark.offsets import Positions, from_json


def lag(progress: Mapping[str, Any] | None) -> dict[TopicPartition, int]:
    """Return the number of offsets that a query has not read yet, by partition.

    Offsets of transaction markers and of removed records are counted too. A partition added since
    the last batch counts from offset 0.

    Args:
        progress: `lastProgress` of a query, or one of `recentProgress`. Without progress, as before
            the first batch, the result is empty, and so it is on Spark 4.1, which does not request
            the end of the log.

    >>> at = lambda offset: {"version": 1, "topics": {"t": {"id": "0f", "partitions": {
    ...     "0": {"offset": offset, "leader_epoch": 0}}}}}
    >>> lag({"sources": [{"endOffset": at(5), "latestOffset": at(9)}]})
    {TopicPartition(topic='t', partition=0): 4}
    """
    found: dict[TopicPartition, int] = {}
    for source in (progress or {}).get("sources", ()):
        end, latest = _positions(source.get("endOffset")), _positions(source.get("latestOffset"))
        for tp, at in latest.items():
            read = end[tp].offset if tp in end else 0
            found[tp] = found.get(tp, 0) + max(0, at.offset - read)
    return found


def _positions(stored: Any) -> Positions:
    """Return the positions that a source of this package has reported; none of another source."""
    try:
        return from_json(json_value(stored) if isinstance(stored, str) else stored).positions
    except (AttributeError, StrandlineError, *UNREADABLE):
        return {}
