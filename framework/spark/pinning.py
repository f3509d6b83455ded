"""Pins of planned records, so that a repeated task or batch reads the same records.

A micro-batch is pinned when Spark requests its end, before Spark writes the end to its checkpoint.
It is released after it is committed. A batch in the checkpoint therefore has a pin; if the pin is
missing, records may be missing too. The end of a batch read is not reported to the source, so its
pin expires after it was unused for a while.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import OffsetOutOfRange, UnknownPin, UnknownTopic
from strandline.changelog.pins import PinName, PinnedRanges, there
from strandline.framework.spark.offsets import Positions
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.planning import OffsetRange, ReadPlan
from strandline.framework.spark.reading import report

MAX_ATTEMPTS = 3
"""Number of plans that are made if the log loses records between planning and pinning."""


def new_holder() -> str:
    """Return the name under which one query, or one batch read, pins."""
    return SystemClock().new_id()


def pin_of_read() -> PinName:
    """Return the name of the pin of one batch read."""
    return PinName(new_holder(), "0", "0")


def position_name(positions: Positions) -> str:
    """Return a short name for positions, as a part of a pin's name.

    >>> position_name({})
    '4f53cda18c2baa0c'
    """
    # A position without an incarnation is hashed as by versions that had none, so that pins of
    # their checkpoints are found.
    named = [(tp, at if at.incarnation else at[:3]) for tp, at in sorted(positions.items())]
    return hashlib.sha256(msgspec.json.encode(named)).hexdigest()[:16]


def planned(
    broker: Broker,
    options: SourceOptions,
    name: PinName,
    timeout_ms: int,
    look: Callable[[], ReadPlan],
) -> list[OffsetRange]:
    """Return the ranges that `look` plans, pinned under that name.

    They are not pinned if `timeout_ms` is 0, or the log has no pins (Kafka). Raises StorageFailed,
    and OffsetOutOfRange for lost records if that is to be an error.
    """
    left = MAX_ATTEMPTS
    while True:
        ranges, losses = look()
        report(losses, fail=options.fail_on_data_loss)
        if timeout_ms == 0 or (pins := broker.pins) is None:
            return ranges
        try:
            wanted = {each.topic_partition: each.pinned for each in ranges}
            return _ranges(name, pins.hold(name, wanted, timeout_ms=timeout_ms))
        except (OffsetOutOfRange, UnknownTopic):
            left -= 1
            if not left:
                raise


def known(broker: Broker, name: PinName) -> list[OffsetRange] | None:
    """Return the ranges pinned under that name; None if there is no such pin."""
    try:
        return _ranges(name, there(broker.pins).use(name))
    except UnknownPin:
        return None


def _ranges(name: PinName, held: PinnedRanges) -> list[OffsetRange]:
    return [
        OffsetRange(*tp, span.topic_id, span.start, span.end, name)
        for tp, span in sorted(held.items())
    ]
