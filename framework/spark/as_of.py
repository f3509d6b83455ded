"""Tables as they were at earlier offsets, or at an earlier time.

The table as of an offset consists of the last record of each key before it. Compaction removes a
record because of a later one of the same key. As long as all those later records are before the
offset (`PartitionOffsets.superseding_end`), the table is complete; otherwise it is refused. The
range is pinned first and checked afterwards, so the cleaner cannot remove a record in between.
"""

from __future__ import annotations

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, OffsetOutOfRange
from strandline.changelog.records import PartitionOffsets
from strandline.framework.spark.offsets import Positions
from strandline.framework.spark.options import AtTime, SourceOptions, StartOrEnd
from strandline.framework.spark.planning import Ends
from strandline.framework.spark.reading import resolve
from strandline.framework.streams.stored_groups import StoredGroups


def check(broker: Broker, options: SourceOptions) -> None:
    """Raise InvalidConfig if the log cannot tell what an earlier state was."""
    if options.as_of is None:
        return
    if broker.pins is None:
        raise InvalidConfig(
            "asOfOffsets and asOfTimestamp cannot be used on Kafka, because it does not publish which "
            "records compaction has removed; read the latest state"
        )
    if options.batch_pin_ms == 0:
        raise InvalidConfig(
            "asOfOffsets and asOfTimestamp need a pin, because compaction could change the table while "
            "it is read: leave out pinTimeoutMs, or set it above 0"
        )


def check_groups(options: SourceOptions, aggregation: StoredGroups) -> None:
    """Raise InvalidConfig for windows that are merged: of their closing only the latest is known."""
    if options.as_of is not None and aggregation.is_merged:
        raise InvalidConfig(
            f"store {options.store!r} has hopping or sliding windows, which can be read in their "
            "latest state only: leave out asOfOffsets and asOfTimestamp"
        )


def moment_ms(options: SourceOptions) -> int:
    """Return the time (ms) at which values with a time to live must not have expired.

    Of a state by offsets the time is not known, so it has expired values too.
    """
    where = options.as_of
    if where is None:
        return SystemClock().now_ms()
    return where.ms - 1 if isinstance(where, AtTime) and isinstance(where.ms, int) else 0


def positions(broker: Broker, where: StartOrEnd, ends: Ends) -> Positions:
    """Return the ends of the records that make up an earlier state.

    Raises OffsetOutOfRange if the log has not yet, or no longer, what is needed for it.
    """
    found = resolve(broker, where, ends, "asOfOffsets")
    problems = [
        f"{tp} as of offset {at.offset}: {problem}"
        for tp, at in sorted(found.items())
        if (problem := _problem(at.offset, ends[tp]))
    ]
    if problems:
        asked = where.option if isinstance(where, AtTime) else "asOfOffsets"
        raise OffsetOutOfRange(
            f"{asked} asks for a state that the log does not have. {'; '.join(problems)}. Ask for a "
            "later state; to keep earlier ones for a while, set min.compaction.lag.ms of the topic"
        )
    return found


def _problem(offset: int, now: PartitionOffsets) -> str | None:
    if offset > now.last_stable_offset:
        return f"it ends at {now.last_stable_offset}"
    if offset < now.log_start:
        return f"records before {now.log_start} were deleted"
    if offset < now.superseding_end:
        return f"compaction has removed records because of later ones, up to offset {now.superseding_end}"
    return None
