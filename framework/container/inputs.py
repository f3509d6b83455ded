"""The input partitions of one task instance: what was fetched and not yet handled."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from changelog.errors import Retriable
from changelog.records import Batch, Fetched, TopicPartition
from framework.container.decoding import Chunk, decode
from framework.topic import Topic

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
    stable: bool = False
    """Whether the last fetch reached the end, with no transaction open there."""
    batches: deque[Batch] = field(default_factory=deque)
    chunks: deque[Chunk] = field(default_factory=deque)
    origin: int = -1
    """Where it began."""

    def __post_init__(self) -> None:
        self.ahead = self.origin = self.position

    @property
    def pending(self) -> bool:
        return bool(self.chunks or self.batches)

    def feed(self, fetched: Fetched) -> None:
        """Take what a fetch from `ahead` gave."""
        self.batches.extend(fetched.batches)
        self.ahead = fetched.next_offset
        self.stable = fetched.next_offset >= fetched.high_watermark
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
        self.stable = False

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


class Run(NamedTuple):
    """Records that come next, up to `stop` of a chunk."""

    source: Input
    chunk: Chunk
    stop: int


def next_run(inputs: list[Input], tombstones: bool, limit: int) -> Run | None:
    """At most `limit` records to handle next: of several inputs the oldest first."""
    if len(inputs) == 1:
        chunk = inputs[0].head(tombstones)
        if chunk is None:
            return None
        return Run(inputs[0], chunk, min(len(chunk.records), chunk.at + limit))
    heads = [(source, chunk) for source in inputs if (chunk := source.head(tombstones))]
    if not heads:
        return None
    source, chunk = min(heads, key=lambda head: _timestamp(head[1]))
    others = [_timestamp(other) for other_source, other in heads if other_source is not source]
    stop = min(len(chunk.records), chunk.at + limit)
    return Run(source, chunk, _until(chunk, stop, min(others)) if others else stop)


def _timestamp(chunk: Chunk) -> int:
    return chunk.records[chunk.at].timestamp


def _until(chunk: Chunk, stop: int, latest: int) -> int:
    """Where the records from `at` on, as long as they are in order, are past `latest`."""
    first = chunk.at + 1
    for index in range(first, stop):
        if chunk.records[index].timestamp > latest:
            return index
    return max(first, stop)
