"""What a move has done, kept in the target log: a topic, `__strandline_moves`.

What it says of copied records is written in the transaction that copies them. So after a crash the two
agree, whatever became of that transaction: each record is in the target once, and is known to be.

    Begun      a topic is going to be made in the target for one of the source
    Made       it is there, and has this id
    Copied     records of a partition, with their offsets here and there, and the checksum up to them
    Verified   what was copied was read back, and is what was read
    Positions  what a group has committed in the target

Entries are MessagePack, in one partition, in their order. All but offsets is small enough to be held; those
are looked up by reading the topic again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock
from strandline.changelog.decoding import msgpack_decoder
from strandline.changelog.errors import UNREADABLE, CorruptLog, TopicExists, UnknownTopic
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.changelog.moving.digest import StreamDigest
from strandline.changelog.moving.reading import rounds, settled_ends
from strandline.changelog.moving.runs import RecordRuns
from strandline.changelog.records import CommittedOffset, ReadPosition, TopicPartition

TOPIC = "__strandline_moves"
CONFIG = {"retention.ms": "-1", "max.message.bytes": str(64 << 20)}
_WHERE = TopicPartition(TOPIC, 0)


class MoveBegun(msgspec.Struct, tag="begun", array_like=True, frozen=True):
    """Whatever was said before of this source's topic holds no more."""

    source_id: str
    topic: str
    schema_id: int
    settled: tuple[int, ...]
    """`PartitionOffsets.settled_end` of each partition of the source."""


class TargetCreated(msgspec.Struct, tag="made", array_like=True, frozen=True):
    """The topic in the target."""

    source_id: str
    target_id: str
    defaults: dict[str, str]
    """What counts for it where nothing is set; a cluster says so only as long as nothing is."""


class RecordsCopied(msgspec.Struct, tag="copied", array_like=True, frozen=True):
    """Records of one partition."""

    source_id: str
    partition: int
    position: int
    """Where the source is to be read on."""
    end: int
    """Offset in the target behind the last record."""
    whole: StreamDigest
    """Of all records that were copied."""
    digest: StreamDigest
    """Of those that were not verified yet."""
    runs: bytes
    leader_epoch: int = UNKNOWN_EPOCH
    """With `incarnation`, the history of the source that `position` is of (`changelog.history`)."""
    incarnation: str = ""


class TopicVerified(msgspec.Struct, tag="verified", array_like=True, frozen=True):
    """The whole topic."""

    source_id: str


class OffsetsCommitted(msgspec.Struct, tag="positions", array_like=True, frozen=True):
    """What the move has committed for a group."""

    group: str
    offsets: tuple[tuple[str, int, int, str], ...]
    """Topic, partition, offset, metadata."""


Entry = MoveBegun | TargetCreated | RecordsCopied | TopicVerified | OffsetsCommitted


class PartitionState(NamedTuple):
    """How far a partition was copied."""

    position: int = 0
    end: int = 0
    whole: StreamDigest = StreamDigest()
    digest: StreamDigest = StreamDigest()
    verified: int = 0
    """Up to this offset of the target it was read back and compared."""
    leader_epoch: int = UNKNOWN_EPOCH
    incarnation: str = ""
    """With `leader_epoch`, the history of the source that `position` is of."""

    def in_source(self, topic_id: str) -> ReadPosition:
        """Where the source is to be read on, with the name of its history."""
        return ReadPosition(self.position, topic_id, self.leader_epoch, self.incarnation)


@dataclass
class TopicState:
    """How far a topic was copied."""

    begun: MoveBegun
    target_id: str = ""
    """Empty as long as it is not known to be made."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    verified: bool = False
    """Whether all that was copied is verified."""

    def partition(self, number: int) -> PartitionState:
        """How far one of its partitions was copied."""
        return self.partitions.get(number, PartitionState())


@dataclass
class JournalState:
    """What a journal says, but for the offsets."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    """By the id in the source."""
    groups: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """What was committed for each, by the move."""

    def apply(self, entry: Entry) -> None:
        """Take note of the next entry."""
        if isinstance(entry, MoveBegun):
            self.topics[entry.source_id] = TopicState(entry)
        elif isinstance(entry, TargetCreated):
            made = self.topics[entry.source_id]
            made.target_id, made.defaults = entry.target_id, entry.defaults
        elif isinstance(entry, RecordsCopied):
            self._copied(self.topics[entry.source_id], entry)
        elif isinstance(entry, TopicVerified):
            topic = self.topics[entry.source_id]
            topic.verified = True
            for number, partition in topic.partitions.items():
                topic.partitions[number] = partition._replace(
                    digest=StreamDigest(), verified=partition.end
                )
        else:
            self.groups.setdefault(entry.group, {}).update(
                (TopicPartition(topic, number), CommittedOffset(offset, metadata))
                for topic, number, offset, metadata in entry.offsets
            )

    def _copied(self, topic: TopicState, entry: RecordsCopied) -> None:
        before = topic.partition(entry.partition)
        topic.verified = False
        topic.partitions[entry.partition] = PartitionState(
            *(entry.position, entry.end, entry.whole, entry.digest, before.verified),
            *(entry.leader_epoch, entry.incarnation),
        )


class Journal:
    """That of one target log. `state` is what it says."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self.state = JournalState()
        for entry in self._entries():
            self.state.apply(entry)

    def make(self) -> None:
        """See that there is a topic for it."""
        try:
            self._broker.topic(TOPIC)
        except UnknownTopic:
            try:
                self._broker.create_topic(TOPIC, config=CONFIG, internal=True)
            except TopicExists:
                return

    def write(self, producer: Producer, entries: Iterable[Entry]) -> Sequence[Entry]:
        """Write entries in the producer's transaction; they count when that is committed: `settle` them."""
        given = list(entries)
        now = self._clock.now_ms()
        keys = [entry.__struct_config__.tag for entry in given]
        producer.append_columns(
            TOPIC,
            [str(key).encode() for key in keys],
            [msgspec.msgpack.encode(entry) for entry in given],
            [now] * len(given),
            partition=0,
        )
        return given

    def settle(self, entries: Iterable[Entry]) -> None:
        """They are committed."""
        for entry in entries:
            self.state.apply(entry)

    def record(self, producer: Producer, *entries: Entry) -> None:
        """Write entries in a transaction of their own."""
        with producer.transaction():
            self.write(producer, entries)
        self.settle(entries)

    def translated(
        self, wanted: Mapping[tuple[str, int], Iterable[int]]
    ) -> dict[tuple[str, int], dict[int, int]]:
        """Where positions of the source are in the target; one behind all that was copied is left out.

        Both are by (id of the topic in the source, partition).
        """
        found: dict[tuple[str, int], dict[int, int]] = {which: {} for which in wanted}
        for entry in self._entries():
            if isinstance(entry, MoveBegun):
                for which in [which for which in found if which[0] == entry.source_id]:
                    found[which] = {}
            elif isinstance(entry, RecordsCopied) and (entry.source_id, entry.partition) in found:
                which = (entry.source_id, entry.partition)
                open_ = [at for at in wanted[which] if at < entry.position]
                missing = [at for at in open_ if at not in found[which]]
                runs = RecordRuns.decode(entry.runs) if missing else None
                for at in missing:
                    target = runs.at(at) if runs is not None else None
                    if target is not None:
                        found[which][at] = target
        return found

    def _entries(self) -> Iterator[Entry]:
        try:
            self._broker.topic(TOPIC)
        except UnknownTopic:
            return
        ends = settled_ends(self._broker, [_WHERE], self._clock)
        for _, fetched in rounds(self._broker, {_WHERE: ends[_WHERE].log_start}, ends):
            for batch in fetched.batches:
                for record in batch.records():
                    yield _decoded(record.value, record.offset)


_decode: Callable[[bytes], Entry] = msgpack_decoder(Entry).decode


def _decoded(value: bytes, offset: int) -> Entry:
    try:
        return _decode(value)
    except UNREADABLE as error:
        raise CorruptLog(
            f"{TOPIC} at offset {offset}: no entry of a move: {error}; something else writes to it. "
            f"Delete that topic, and those that were being copied, and move again"
        ) from error
