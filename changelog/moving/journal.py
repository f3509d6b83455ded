"""The progress of a move, stored in the topic `__strandline_moves` of the target log.

The entry for copied records is written in the transaction that copies them. After a crash the
journal therefore agrees with the target, whether that transaction was committed or aborted: each
record is in the target exactly once.

    MoveBegun         the target topic for a source topic will be created
    TargetCreated     the target topic exists and has this id
    RecordsCopied     records of a partition: source and target offsets, the checksum so far
    TopicVerified     the copied records were read back and are equal to the source's
    OffsetsCommitted  the offsets that the move has committed for a group
    MoveFinished      the move of these topics is finished; the last entry of each complete run

Entries are MessagePack, in one partition, in order. The state is kept in memory except for the
mapping of offsets, which is looked up by reading the topic again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import msgspec

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock
from strandline.changelog.decoding import msgpack_decoder
from strandline.changelog.errors import UNREADABLE, CorruptLog, TopicExists
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.changelog.move_target import JOURNAL_TOPIC, is_move_target
from strandline.changelog.moving.digest import StreamDigest
from strandline.changelog.moving.reading import rounds, settled_ends
from strandline.changelog.moving.runs import RecordRuns
from strandline.changelog.records import CommittedOffset, ReadPosition, TopicPartition

CONFIG = {"retention.ms": "-1", "max.message.bytes": str(64 << 20)}
_PARTITION = TopicPartition(JOURNAL_TOPIC, 0)
_LAST_OFFSETS = 2
"""Offsets of the last entry and of the marker of its transaction."""


class MoveBegun(msgspec.Struct, tag="begun", array_like=True, frozen=True):
    """The move of a topic begins; earlier entries of the same source topic are void."""

    source_id: str
    """Topic id in the source."""
    topic: str
    """Name of the topic."""
    schema_id: int
    """Latest schema id of the source topic."""
    settled: tuple[int, ...]
    """`PartitionOffsets.settled_end` of each partition of the source."""


class TargetCreated(msgspec.Struct, tag="made", array_like=True, frozen=True):
    """The target topic was created."""

    source_id: str
    """Topic id in the source."""
    target_id: str
    """Topic id in the target."""
    defaults: dict[str, str]
    """Default settings in the target; a cluster reports them only while nothing else is set."""


class RecordsCopied(msgspec.Struct, tag="copied", array_like=True, frozen=True):
    """Records of one partition were copied."""

    source_id: str
    """Topic id in the source."""
    partition: int
    position: int
    """Next offset to read in the source."""
    end: int
    """Offset in the target after the last copied record."""
    whole: StreamDigest
    """Checksum of all copied records."""
    digest: StreamDigest
    """Checksum of the copied records that are not verified yet."""
    runs: bytes
    """Encoded `RecordRuns` of these records."""
    leader_epoch: int = UNKNOWN_EPOCH
    """Leader epoch of `position` in the source (`changelog.history`)."""
    incarnation: str = ""
    """Incarnation of `leader_epoch`."""


class TopicVerified(msgspec.Struct, tag="verified", array_like=True, frozen=True):
    """All copied records of a topic were verified."""

    source_id: str
    """Topic id in the source."""
    is_finished: bool = True
    """False if `MoveFinished` follows. Earlier versions have written neither."""


class OffsetsCommitted(msgspec.Struct, tag="positions", array_like=True, frozen=True):
    """The move has committed offsets for a group."""

    group: str
    offsets: tuple[tuple[str, int, int, str], ...]
    """Tuples of topic, partition, offset and metadata."""


class MoveFinished(msgspec.Struct, tag="finished", array_like=True, frozen=True):
    """The committed offsets of groups in these topics fit the copied records."""

    topics: tuple[str, ...]
    """Topic ids in the source."""
    unfinished: tuple[tuple[str, str], ...]
    """Name and topic id in the target of all other topics whose move is not finished."""


Entry = MoveBegun | TargetCreated | RecordsCopied | TopicVerified | OffsetsCommitted | MoveFinished


class PartitionState(NamedTuple):
    """The progress of a partition; see `RecordsCopied` for the fields of the same name."""

    position: int = 0
    end: int = 0
    whole: StreamDigest = StreamDigest()
    digest: StreamDigest = StreamDigest()
    verified: int = 0
    """Offset in the target before which all records were read back and compared."""
    leader_epoch: int = UNKNOWN_EPOCH
    incarnation: str = ""

    def in_source(self, topic_id: str) -> ReadPosition:
        """Return the next position to read in the source, with its leader epoch."""
        return ReadPosition(self.position, topic_id, self.leader_epoch, self.incarnation)


@dataclass
class TopicState:
    """The progress of a topic."""

    begun: MoveBegun
    target_id: str = ""
    """Topic id in the target; empty until the creation is in the journal."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Default settings in the target."""
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    """Progress by partition; partitions without copied records are missing."""
    verified: bool = False
    """True if all copied records are verified."""
    finished: bool = False
    """True if the offsets of groups fit the copied records too."""

    def partition(self, number: int) -> PartitionState:
        """Return the progress of a partition."""
        return self.partitions.get(number, PartitionState())


@dataclass
class JournalState:
    """The state after all entries of a journal, without the mapping of offsets."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    """Progress of each topic, by its id in the source."""
    groups: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """Offsets committed by the move, by group."""

    def apply(self, entry: Entry) -> None:
        """Update the state by the next entry."""
        if isinstance(entry, MoveBegun):
            self.topics[entry.source_id] = TopicState(entry)
        elif isinstance(entry, TargetCreated):
            topic_state = self.topics[entry.source_id]
            topic_state.target_id, topic_state.defaults = entry.target_id, entry.defaults
        elif isinstance(entry, RecordsCopied):
            self._copied(self.topics[entry.source_id], entry)
        elif isinstance(entry, TopicVerified):
            topic = self.topics[entry.source_id]
            topic.verified, topic.finished = True, entry.is_finished
            for number, partition in topic.partitions.items():
                topic.partitions[number] = partition._replace(
                    digest=StreamDigest(), verified=partition.end
                )
        elif isinstance(entry, MoveFinished):
            for source_id in entry.topics:
                self.topics[source_id].finished = True
        else:
            self.groups.setdefault(entry.group, {}).update(
                (TopicPartition(topic, number), CommittedOffset(offset, metadata))
                for topic, number, offset, metadata in entry.offsets
            )

    def unfinished(self, finishing: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
        """Return name and target id of topics whose move is not finished, without `finishing`."""
        return tuple(
            (topic.begun.topic, topic.target_id)
            for source_id, topic in self.topics.items()
            if not topic.finished and source_id not in finishing
        )

    def _copied(self, topic: TopicState, entry: RecordsCopied) -> None:
        previous = topic.partition(entry.partition)
        topic.verified = topic.finished = False
        topic.partitions[entry.partition] = PartitionState(
            *(entry.position, entry.end, entry.whole, entry.digest, previous.verified),
            *(entry.leader_epoch, entry.incarnation),
        )


class Journal:
    """The journal of one target log. `state` is its current state."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self.state = JournalState()
        for entry in self._entries():
            self.state.apply(entry)

    def finished(self, topics: Collection[str]) -> MoveFinished:
        """Return the entry that the move of the topics with these source ids is finished."""
        return MoveFinished(tuple(topics), self.state.unfinished(topics))

    def create_topic_if_missing(self) -> None:
        """Create the topic of the journal unless it exists."""
        if not is_move_target(self._broker):
            with contextlib.suppress(TopicExists):
                self._broker.create_topic(JOURNAL_TOPIC, config=CONFIG, internal=True)

    def write(self, producer: Producer, entries: Iterable[Entry]) -> Sequence[Entry]:
        """Append entries in the producer's transaction; return them.

        Call `apply_committed` with them after the transaction was committed.
        """
        written = list(entries)
        now = self._clock.now_ms()
        keys = [entry.__struct_config__.tag for entry in written]
        producer.append_columns(
            JOURNAL_TOPIC,
            [str(key).encode() for key in keys],
            [msgspec.msgpack.encode(entry) for entry in written],
            [now] * len(written),
            partition=0,
        )
        return written

    def apply_committed(self, entries: Iterable[Entry]) -> None:
        """Update the state by entries whose transaction was committed."""
        for entry in entries:
            self.state.apply(entry)

    def record(self, producer: Producer, *entries: Entry) -> None:
        """Append entries in a separate transaction, and update the state."""
        with producer.transaction():
            self.write(producer, entries)
        self.apply_committed(entries)

    def translated(
        self, wanted: Mapping[tuple[str, int], Iterable[int]]
    ) -> dict[tuple[str, int], dict[int, int]]:
        """Translate source offsets to target offsets.

        Offsets after all copied records are left out. Argument and result are keyed by (topic id in
        the source, partition).
        """
        found: dict[tuple[str, int], dict[int, int]] = {key: {} for key in wanted}
        for entry in self._entries():
            if isinstance(entry, MoveBegun):
                for key in [key for key in found if key[0] == entry.source_id]:
                    found[key] = {}
            elif isinstance(entry, RecordsCopied) and (entry.source_id, entry.partition) in found:
                key = (entry.source_id, entry.partition)
                copied = [at for at in wanted[key] if at < entry.position]
                missing = [at for at in copied if at not in found[key]]
                runs = RecordRuns.decode(entry.runs) if missing else None
                for at in missing:
                    target = runs.at(at) if runs is not None else None
                    if target is not None:
                        found[key][at] = target
        return found

    def _entries(self) -> Iterator[Entry]:
        """Read all entries; none if the topic does not exist."""
        if not is_move_target(self._broker):
            return
        ends = settled_ends(self._broker, [_PARTITION], self._clock)
        for _, fetched in rounds(self._broker, {_PARTITION: ends[_PARTITION].log_start}, ends):
            for batch in fetched.batches:
                for record in batch.records():
                    yield _decoded(record.value, record.offset)


def unfinished(broker: Broker, clock: Clock) -> dict[str, str]:
    """Return the target id of each topic whose move to this log is not finished, by name.

    After a complete run the last entry has them, so that the others are not read.
    """
    if not is_move_target(broker):
        return {}
    last = _last_entry(broker)
    if isinstance(last, MoveFinished):
        return dict(last.unfinished)
    return dict(Journal(broker, clock).state.unfinished())


def _last_entry(broker: Broker) -> Entry | None:
    """Return the last committed entry; None if it is not among the last offsets."""
    end = broker.offsets([_PARTITION])[_PARTITION]
    start = max(end.log_start, end.last_stable_offset - _LAST_OFFSETS)
    if end.last_stable_offset < end.high_watermark or start == end.last_stable_offset:
        return None
    last = None
    for _, fetched in rounds(broker, {_PARTITION: start}, {_PARTITION: end}):
        for batch in fetched.batches:
            for record in batch.records():
                last = _decoded(record.value, record.offset)
    return last


_decode: Callable[[bytes], Entry] = msgpack_decoder(cast("type[Entry]", Entry)).decode


def _decoded(value: bytes, offset: int) -> Entry:
    try:
        return _decode(value)
    except UNREADABLE as error:
        raise CorruptLog(
            f"{JOURNAL_TOPIC} at offset {offset}: not an entry of a move: {error}; something else writes to "
            f"the topic. Delete it and the topics that were being copied, and move again"
        ) from error
