"""The input partitions of one task instance: what was fetched and not yet handled."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.changelog.errors import Retriable
from strandline.changelog.records import Batch, Fetched, TopicPartition
from strandline.framework.container.decoding import Chunk, decode
from strandline.framework.topic import Topic

DECODE = 8_192
"""Records decoded at a time: enough to be quick by the column, few enough to stay in cache."""


@dataclass(slots=True)
class Input:
    """One input partition."""

    topic: Topic[Any, Any]
    partition: TopicPartition
    position: int
    """The next offset to handle: what a commit writes down."""
    ahead: int = -1
    """The next offset to fetch."""
    stable: bool | None = None
    """True if the last fetch reached the end, with no transaction open there; None if a fetch is to tell."""
    read_to_end: bool = False
    """True if the last fetch found the end of the visible records."""
    batches: deque[Batch] = field(default_factory=deque)
    chunks: deque[Chunk] = field(default_factory=deque)
    origin: int = -1
    """Where it began."""

    def __post_init__(self) -> None:
        self.ahead = self.origin = self.position

    @property
    def pending(self) -> bool:
        return bool(self.chunks or self.batches)

    @property
    def is_answered(self) -> bool:
        """Whether the next record of this input is known, or that there was none."""
        return self.read_to_end or self.pending

    def feed(self, fetched: Fetched) -> None:
        """Take what a fetch from `ahead` gave."""
        self.batches.extend(fetched.batches)
        self.ahead = fetched.next_offset
        self.stable = fetched.next_offset >= fetched.high_watermark
        self.read_to_end = fetched.next_offset >= fetched.last_stable_offset
        if not self.pending:
            self.position = self.ahead

    def head(self, tombstones: bool) -> Chunk | None:
        """The next chunk with something to handle, decoded; None if there is none."""
        while True:
            if not self.chunks:
                if not self.batches:
                    return None
                self._decode_some(tombstones)
            chunk = self.chunks[0]
            if chunk.at < len(chunk.records):
                return chunk
            self.chunks.popleft()
            self.position = chunk.end if self.pending else self.ahead

    def skip(self, tombstones: bool) -> None:
        """Let the position go past what there is nothing to handle in, as far as that can be known now."""
        with contextlib.suppress(Retriable):  # a schema registry that does not answer
            self.head(tombstones)

    def rewind(self, position: int) -> None:
        """Forget what was fetched, and go on at `position`."""
        self.batches.clear()
        self.chunks.clear()
        self.position = self.ahead = position
        self.stable, self.read_to_end = None, False

    def _decode_some(self, tombstones: bool) -> None:
        batch = self.batches[0]
        rest = batch.slice(DECODE) if len(batch) > DECODE else None
        self.chunks.extend(
            decode(self.topic, batch.slice(0, DECODE) if rest else batch, tombstones)
        )
        # Only now: a schema registry that does not answer is asked again, for the same records.
        self.batches.popleft()
        if rest is not None:
            self.batches.appendleft(rest)


def groups(sources: Sequence[Input]) -> list[dict[TopicPartition, list[Input]]]:
    """Inputs that can be fetched together: within a group, one position a partition."""
    found: list[dict[TopicPartition, list[Input]]] = []
    for source in sources:
        for group in found:
            same = group.setdefault(source.partition, [])
            if not same or same[0].ahead == source.ahead:
                same.append(source)
                break
        else:
            found.append({source.partition: [source]})
    return found


class RecordRun(NamedTuple):
    """Records that come next, up to `stop` of a chunk."""

    source: Input
    chunk: Chunk
    stop: int


def next_run(inputs: list[Input], tombstones: bool, limit: int) -> RecordRun | None:
    """Return at most `limit` records to handle next; None if there are none, or not yet.

    Several inputs are merged by time: the oldest of their next records comes first, and of equal
    times the one whose input was declared first. An input that has run dry is fetched before the
    others go on, because what it still has may be older.
    """
    if len(inputs) == 1:
        chunk = inputs[0].head(tombstones)
        if chunk is None:
            return None
        return RecordRun(inputs[0], chunk, min(len(chunk.records), chunk.at + limit))
    heads = [source.head(tombstones) for source in inputs]
    if not all(source.is_answered for source in inputs):
        return None
    times = [(_timestamp(chunk), at) for at, chunk in enumerate(heads) if chunk is not None]
    if not times:
        return None
    (_, first), *others = sorted(times)
    source, chunk = inputs[first], heads[first]
    assert chunk is not None
    stop = min(len(chunk.records), chunk.at + limit)
    return RecordRun(source, chunk, _until(chunk, stop, first, others[0]) if others else stop)


def _timestamp(chunk: Chunk) -> int:
    return chunk.records[chunk.at].timestamp


def _until(chunk: Chunk, stop: int, number: int, next_best: tuple[int, int]) -> int:
    """Index of the first record that comes after `next_best`: the time and number of another input."""
    latest = next_best[0] if number < next_best[1] else next_best[0] - 1
    first = chunk.at + 1
    for index in range(first, stop):
        if chunk.records[index].timestamp > latest:
            return index
    return max(first, stop)
