"""Read partitions up to an end offset, for copying and comparing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import stable_offsets
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.records import CommittedOffset, Fetched, PartitionOffsets, TopicPartition
from strandline.changelog.scan import scan_kept

Ends = Mapping[TopicPartition, PartitionOffsets]
"""Offsets of partitions at one moment."""
Advance = Callable[[int], None]
"""Called with the number of offsets just done."""
GroupOffsets = dict[str, dict[TopicPartition, CommittedOffset]]
"""Committed offsets by group."""

ROUND_BYTES = 32 << 20
"""Approximate bytes of a fetch, over all its partitions."""
MAX_WAIT_S = 10.0
"""Maximum time to wait for open transactions to end."""
_PAUSE_S = 0.02
"""Interval between two look-ups while waiting."""


def settled_ends(broker: Broker, partitions: Collection[TopicPartition], clock: Clock) -> Ends:
    """Return the offsets of partitions once no transaction is open in them.

    Raises InvalidRequest if one stays open for `MAX_WAIT_S`.
    """
    deadline = clock.monotonic() + MAX_WAIT_S
    while True:
        ends = broker.offsets(list(partitions)) if partitions else {}
        open_partitions = [
            tp for tp, end in ends.items() if end.last_stable_offset < end.high_watermark
        ]
        if not open_partitions:
            return ends
        if clock.monotonic() > deadline:
            named = ", ".join(
                f"{tp} from offset {ends[tp].last_stable_offset}" for tp in open_partitions[:5]
            )
            raise InvalidRequest(
                f"transactions are open: {named}; stop the writers. A transaction whose producer is "
                f"gone ends after its transaction.timeout.ms; then run this again"
            )
        threading.Event().wait(_PAUSE_S)


def committed_in(
    broker: Broker, groups: Iterable[str], topics: Collection[str], clock: Clock
) -> GroupOffsets:
    """Return the committed offsets of groups in topics; groups without any are left out."""
    present = [info for info in broker.topics() if info.name in topics]
    asked = [tp for info in present for tp in info.topic_partitions]
    committed = {
        group: stable_offsets(broker, group, asked, clock, within_s=MAX_WAIT_S) for group in groups
    }
    return {group: offsets for group, offsets in committed.items() if offsets}


def rounds(
    broker: Broker, positions: Mapping[TopicPartition, int], ends: Ends
) -> Iterator[tuple[TopicPartition, Fetched]]:
    """Yield the committed records from `positions` to the last stable offsets, by partition.

    Only some partitions are read at a time, so that each is read without long pauses.
    """
    for one_fetch in fetches(broker, positions, ends):
        yield from one_fetch.items()


def fetches(
    broker: Broker, positions: Mapping[TopicPartition, int], ends: Ends
) -> Iterator[dict[TopicPartition, Fetched]]:
    """Yield the same as `rounds`, with the partitions of one fetch together."""
    stable = {tp: ends[tp].last_stable_offset for tp in positions}
    return scan_kept(broker, positions, stable, max_bytes=ROUND_BYTES)
