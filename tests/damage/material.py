"""A small log with one of everything, created once, and all questions that a user can ask about it.

It has bytes and typed topics, compressed and not; transactions committed and aborted over several
partitions; committed offsets; several segments with their indexes and producer snapshots; a log
start past offset 0; an empty partition. It was closed in order, or killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import CorruptLog
from strandline.changelog.layout import partition_folder
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Append, CommittedOffset, Isolation, TopicPartition
from tests.log.kit import START_MS, Client, World

SMALL = {"segment.bytes": "4096", "index.interval.bytes": "512", "retention.ms": "-1"}
TYPED = pa.schema([pa.field("carrier", pa.string()), pa.field("delay", pa.float64())])
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
GROUPS = ("g", "h")
CLOCK_MS = START_MS + 60_000

Files = Mapping[str, bytes]
Answers = dict[tuple[Any, ...], Any]
"""Answers by question. Answers with records are dicts by offset."""


@dataclass(frozen=True)
class Material:
    """The files of a log, and its answers before any damage."""

    files: Files
    folders: Mapping[str, str]
    """Topic by folder of a partition."""
    answers: Answers
    closed: bool
    """True if the log was closed in order."""

    def topic_of(self, path: str) -> str | None:
        """Return the topic of a partition's file; None for other files."""
        return self.folders.get(path.rpartition("/")[0])


def make(*, closed: bool, rounds: int = 8) -> Material:
    """Create the log."""
    storage = MemoryStorage()
    world = World(storage, ManualClock(START_MS))
    world.owner.create_topic("plain", 2, config=SMALL)
    settings = {**SMALL, "compression.type": "zstd"}
    world.owner.create_topic("typed", 2, config=settings, schema=TYPED)  # nothing goes to typed-1
    world.owner.alter_config({"log.cleaner.delete.retention.ms": "5000"})
    _fill(world, rounds)
    world.owner.delete_records(TopicPartition("plain", 1), 6)
    folders = {
        partition_folder(info.topic_id, number): info.name
        for info in world.owner.topics()
        for number in range(info.partitions)
    }
    answers = ask(world.owner)
    if closed:
        world.owner.close()
    files = {path: bytes(content) for path, content in storage._files.items()}
    return Material(files, folders, answers, closed)


def _fill(world: World, rounds: int) -> None:
    plain, tx, second = Client(world), Client(world, "tx"), Client(world, "second")
    for n in range(rounds):
        at = START_MS + 1000 * n
        plain.append(b"p%d" % n * 150, b"q%d" % n, topic="plain", key=b"k%d" % (n % 3), times=at)
        for number in (0, 1):
            tx.append(b"x%d" % n * 200, topic="plain", partition=number, times=at)
        _append_typed(world, plain, n)
        world.owner.add_offsets(
            tx.identity, "g", {TopicPartition("plain", 0): CommittedOffset(n, f"m{n}")}
        )
        tx.commit() if n % 3 else tx.abort()
        if n % 3 == 1:
            second.append(b"s%d" % n, topic="plain", partition=1, times=at)
            second.commit()
        world.owner.commit_offsets("h", {TopicPartition("typed", 0): CommittedOffset(n)})


def _append_typed(world: World, client: Client, n: int) -> None:
    """Append a batch of rows, and one large enough for a compressed Arrow message."""
    count = 40 if n % 2 else 3
    carriers = ["AA", "BB", None][: 1 + n % 3]
    value = pa.StructArray.from_arrays(
        [
            pa.array([carriers[i % len(carriers)] for i in range(count)], pa.string()),
            pa.array([n + i / 10 for i in range(count)], pa.float64()),
        ],
        fields=list(TYPED),
    )
    batch = pa.record_batch(
        {
            "timestamp": pa.array([START_MS + 1000 * n + i for i in range(count)], pa.int64()),
            "key": pa.array([b"t%d" % (i % 5) for i in range(count)], pa.binary()),
            "value": value,
        }
    )
    tp = TopicPartition("typed", 0)
    base = client.sequences.get(tp, 0)
    world.owner.append([Append(*tp, batch, client.identity, base, schema_id=1)])
    client.sequences[tp] = base + count


def load(files: Files) -> MemoryStorage:
    """Return a storage with these files."""
    storage = MemoryStorage()
    storage._files = {path: bytearray(content) for path, content in files.items()}
    return storage


def opened(storage: MemoryStorage) -> Owner:
    """Open the log, some time after it was created."""
    return Owner(storage, clock=ManualClock(CLOCK_MS), background=False)


# Questions ----------------------------------------------------------------------------


def ask(owner: Owner, *, tolerant: bool = False) -> Answers:
    """Ask everything that a user can ask: settings, topics, offsets, records from any position,
    groups.

    With `tolerant`, a partition that answers with an error counts as having no records.
    """
    answers: Answers = {("settings",): owner.describe_config()}
    for info in owner.topics():
        if info.internal:
            continue
        schema = None if info.schema is None else info.schema.to_string()
        answers["topic", info.name] = (info.topic_id, info.partitions, dict(info.config), schema)
        for number in range(info.partitions):
            with contextlib.suppress(*([CorruptLog] if tolerant else [])):
                answers |= _ask_partition(owner, TopicPartition(info.name, number))
    for group in GROUPS:
        answers["group", group] = {
            (tp, offset.offset, offset.metadata) for tp, offset in owner.committed(group).items()
        }
    return answers


def _ask_partition(owner: Owner, tp: TopicPartition) -> Answers:
    ends = owner.offsets([tp])[tp]
    answers: Answers = {("start", tp): ends.log_start}
    for isolation in ISOLATIONS:
        everything = records(owner, tp, ends.log_start, isolation)
        answers["records", tp, isolation] = everything
        for start in range(ends.log_start, ends.high_watermark, 1 + ends.high_watermark // 5):
            found = records(owner, tp, start, isolation, at_once=True)
            answers["from", tp, isolation, start] = min(found, default=None)
        for time in range(START_MS - 500, START_MS + 8_500, 3_000):
            answers["time", tp, isolation, time] = owner.offset_for_time(
                tp, time, isolation=isolation
            )
    return answers


def records(
    owner: Owner,
    tp: TopicPartition,
    position: int,
    isolation: Isolation,
    *,
    at_once: bool = False,
) -> dict[int, tuple[Any, ...]]:
    """Return the records that a reader sees from `position`, by offset; `at_once` in one small
    fetch."""
    seen: dict[int, tuple[Any, ...]] = {}
    while True:
        size = 1 if at_once else 8 << 20
        fetched = owner.fetch({tp: position}, isolation=isolation, max_bytes=size)[tp]
        for batch in fetched.batches:
            for one in batch.records():
                if one.offset >= position:
                    value = str(one.value) if isinstance(one.value, dict) else one.value
                    seen[one.offset] = (one.timestamp, one.key, value, tuple(one.headers))
        if at_once or fetched.next_offset == position:
            return seen
        position = fetched.next_offset
