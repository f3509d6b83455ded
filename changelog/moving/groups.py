"""The committed offsets of groups, translated to the target."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.moving.journal import Entry, Journal, OffsetsCommitted
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
    """Translate committed offsets to the target.

    A translated offset points to the copy of the first record at or after the source offset, or to
    the end if there is none.
    """
    ids = {info.name: info.topic_id for info in topics}
    wanted = _positions(offsets, metadata)
    found = journal.translated({(ids[tp.topic], tp.partition): at for tp, at in wanted.items()})
    ends = target.offsets(list(wanted)) if wanted else {}
    known = {tp: found[ids[tp.topic], tp.partition] for tp in wanted}
    return {
        group: {
            tp: _translate_one(offset, known[tp], ends[tp].last_stable_offset, metadata)
            for tp, offset in of_group.items()
        }
        for group, of_group in offsets.items()
    }


def commit(
    offsets: GroupOffsets, topics: Collection[TopicInfo], producer: Producer, journal: Journal
) -> None:
    """Commit offsets in the target, all in one transaction with their journal entries.

    With them the move of the topics is finished.
    """
    entries: list[Entry] = [
        OffsetsCommitted(
            group, tuple((*tp, offset.offset, offset.metadata) for tp, offset in of_group.items())
        )
        for group, of_group in offsets.items()
    ]
    entries.append(journal.finished([info.topic_id for info in topics]))
    with producer.transaction():
        for group, of_group in offsets.items():
            producer.send_offsets_to_transaction(of_group, group)
        journal.write(producer, entries)
    journal.apply_committed(entries)


def check_untouched(found: GroupOffsets, journal: Journal, wanted: GroupOffsets) -> None:
    """Raise InvalidRequest if a group has committed offsets in the target itself.

    Offsets in the journal, and those in `wanted`, are the move's own.
    """
    for group, of_group in found.items():
        by_move = journal.state.groups.get(group, {})
        for tp, offset in of_group.items():
            expected = [by_move.get(tp), wanted.get(group, {}).get(tp)]
            if _comparable(offset) not in [_comparable(one) for one in expected if one is not None]:
                raise InvalidRequest(
                    f"group {group!r} has continued in the target: it has committed offset "
                    f"{offset.offset} in {tp}, which the move did not; nothing is changed. To move "
                    f"again delete the topic in the target, with all changes made there since"
                )


def _positions(offsets: GroupOffsets, metadata: Metadata) -> dict[TopicPartition, set[int]]:
    """Return all source offsets to translate: committed ones and those within metadata."""
    wanted: dict[TopicPartition, set[int]] = {}
    for of_group in offsets.values():
        for tp, offset in of_group.items():
            seen = wanted.setdefault(tp, set())
            seen.add(offset.offset)

            def collect(position: int, seen: set[int] = seen) -> int:
                seen.add(position)
                return position

            metadata(offset.metadata, collect)
    return wanted


def _translate_one(
    offset: CommittedOffset, known: Mapping[int, int], end: int, metadata: Metadata
) -> CommittedOffset:
    """Translate one committed offset and the positions in its metadata."""

    def in_target(position: int) -> int:
        return known.get(position, end)

    return CommittedOffset(in_target(offset.offset), metadata(offset.metadata, in_target))


def _comparable(offset: CommittedOffset) -> tuple[int, str]:
    """Return what is compared of a committed offset: offset and metadata."""
    return offset.offset, offset.metadata
