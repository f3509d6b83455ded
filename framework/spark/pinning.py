"""Pinning what is planned, so that a task, or a whole batch, that is tried again reads the same.

A micro-batch is pinned when Spark asks how far it may go, before Spark writes that into its checkpoint; and
let go of once it is committed. So a batch that the checkpoint knows has a pin, or else records
may be missing that were there before. A batch read has nobody who says when it is over: its pin goes when
it was not used for a while.
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

ATTEMPTS = 3
"""How often it is planned anew when the log loses records between planning and pinning."""


def new_holder() -> str:
    """Who pins: one query, or one batch read."""
    return SystemClock().new_id()


def pin_of_read() -> PinName:
    """The pin of one batch read."""
    return PinName(new_holder(), "0", "0")


def position_name(positions: Positions) -> str:
    """What stands for positions in the name of a pin.

    >>> position_name({})
    '4f53cda18c2baa0c'
    """
    # Without an incarnation as it was before there were any: pins of older checkpoints are found.
    named = [(tp, at if at.incarnation else at[:3]) for tp, at in sorted(positions.items())]
    return hashlib.sha256(msgspec.json.encode(named)).hexdigest()[:16]


def planned(
    broker: Broker,
    options: SourceOptions,
    name: PinName,
    timeout_ms: int,
    look: Callable[[], ReadPlan],
) -> list[OffsetRange]:
    """What `look` plans, pinned under that name, unless `timeout_ms` is 0, or the log has no pins (Kafka).

    Raises OffsetOutOfRange for what is lost, if that is to be an error; StorageFailed.
    """
    left = ATTEMPTS
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
    """What was pinned under that name; None if there is no such pin."""
    try:
        return _ranges(name, there(broker.pins).use(name))
    except UnknownPin:
        return None


def _ranges(name: PinName, held: PinnedRanges) -> list[OffsetRange]:
    return [
        OffsetRange(*tp, span.topic_id, span.start, span.end, name)
        for tp, span in sorted(held.items())
    ]
