"""What groups have committed, with the offsets of the target."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.moving.journal import Journal, OffsetsCommitted
from strandline.changelog.moving.reading import GroupOffsets
from strandline.changelog.moving.selection import Metadata
from strandline.changelog.records import CommittedOffset, TopicInfo, TopicPartition


def translated(
    offsets: GroupOffsets,
    topics: Collection[TopicInfo],
    journal: Journal,
    target: Broker,
    metadata: Metadata,
) -> GroupOffsets:
    """The same positions in the target: before the first record there that they are before here."""
    ids = {info.name: info.topic_id for info in topics}
    wanted = _positions(offsets, metadata)
    found = journal.translated({(ids[tp.topic], tp.partition): at for tp, at in wanted.items()})
    ends = target.offsets(list(wanted)) if wanted else {}
    known = {tp: found[ids[tp.topic], tp.partition] for tp in wanted}
    return {
        group: {
            tp: _moved(offset, known[tp], ends[tp].last_stable_offset, metadata)
            for tp, offset in of_group.items()
        }
        for group, of_group in offsets.items()
    }


def commit(offsets: GroupOffsets, producer: Producer, journal: Journal) -> None:
    """Commit them in the target, all in one transaction."""
    if not offsets:
        return
    entries = [
        OffsetsCommitted(
            group, tuple((*tp, offset.offset, offset.metadata) for tp, offset in of_group.items())
        )
        for group, of_group in offsets.items()
    ]
    with producer.transaction():
        for group, of_group in offsets.items():
            producer.send_offsets_to_transaction(of_group, group)
        journal.write(producer, entries)
    journal.settle(entries)


def check_untouched(found: GroupOffsets, journal: Journal, wanted: GroupOffsets) -> None:
    """Raise InvalidRequest if a group has committed anything else in the target than the move has."""
    for group, of_group in found.items():
        by_us = journal.state.groups.get(group, {})
        for tp, offset in of_group.items():
            ours = [by_us.get(tp), wanted.get(group, {}).get(tp)]
            if _plain(offset) not in [_plain(one) for one in ours if one is not None]:
                raise InvalidRequest(
                    f"group {group!r} has gone on in the target: it has committed offset "
                    f"{offset.offset} in {tp}, which the move did not; it is left as it is. To move "
                    f"again delete the topic in the target, with all that was done there since"
                )


def _positions(offsets: GroupOffsets, metadata: Metadata) -> dict[TopicPartition, set[int]]:
    wanted: dict[TopicPartition, set[int]] = {}
    for of_group in offsets.values():
        for tp, offset in of_group.items():
            seen = wanted.setdefault(tp, set())
            seen.add(offset.offset)

            def note(position: int, seen: set[int] = seen) -> int:
                seen.add(position)
                return position

            metadata(offset.metadata, note)
    return wanted


def _moved(
    offset: CommittedOffset, known: Mapping[int, int], end: int, metadata: Metadata
) -> CommittedOffset:
    def there(position: int) -> int:
        return known.get(position, end)

    return CommittedOffset(there(offset.offset), metadata(offset.metadata, there))


def _plain(offset: CommittedOffset) -> tuple[int, str]:
    return offset.offset, offset.metadata
