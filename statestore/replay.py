"""Replay of a changelog from a position to its end, as sorted chunks for the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import CorruptLog, RequestTimedOut
from strandline.changelog.history import continues, epoch_before
from strandline.changelog.records import Batch, Fetched, TopicPartition
from strandline.statestore.changelogged import SortedChanges
from strandline.statestore.engine import StorePosition
from strandline.statestore.latest import latest_per_key

_log = logging.getLogger("strandline")

T = TypeVar("T")

CHUNK_RECORDS = 500_000
"""Maximum number of records in a chunk."""

FETCH_BYTES = 8 << 20
"""Maximum bytes of one fetch."""

PIECE_RECORDS = 2_000
"""Number of records of a chunk that are Python objects at the same time."""

MAX_STALLED_POLLS = 30
"""Number of long polls, of a second each, without progress after which a restore fails."""

LOG_WAIT_AFTER_S = 3
"""Log a warning after waiting this many seconds for an open transaction."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Progress of restoring one store partition."""

    partition: TopicPartition
    """Partition of the changelog."""
    records: int
    """Number of records replayed so far."""
    remaining: int
    """Number of offsets up to the end. Some may be markers, or removed by compaction."""
    seconds: float
    """Seconds since the replay began."""

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the current rate; None before there is one."""
        return self.remaining / self.rate if self.rate else None


class TransactionOpen(RequestTimedOut):
    """An open transaction in a changelog partition keeps the replay from its end."""

    def __init__(self, message: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        """Partition of the changelog."""
        self.offset = offset
        """Offset from which on the transaction is open."""


OnProgress = Callable[[ReplayProgress], None]
"""Callback for the progress of a restore. An exception that it raises ends the restore."""


class ReplayBounds(NamedTuple):
    """Bounds of a replay."""

    end: int
    """End offset (exclusive)."""
    wait: float
    """Maximum seconds to wait for open transactions."""
    chunk_bytes: int


class Overtaken(Exception):
    """The records read cannot be kept, for the reason in the message; the restore starts over."""


class ChangelogReplay:
    """Reads a changelog partition from a position to `end`.

    It reads on to the log's `superseding_end` if that is later. Compaction may have removed records
    before the end in favor of later ones, and the state is consistent only with those.
    """

    def __init__(
        self,
        broker: Broker,
        partition: TopicPartition,
        origin: StorePosition,
        bounds: ReplayBounds,
        progress: OnProgress | None,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._origin = origin
        self._end = bounds.end
        self._wait = bounds.wait
        self._chunk_bytes = bounds.chunk_bytes
        self._progress = progress
        self._clock = clock
        self._begun = clock.monotonic()
        self.reached = origin
        """Position of a state to which everything read so far is applied."""
        self.records = 0
        """Number of records read so far."""

    @property
    def position(self) -> int:
        """Next offset to read."""
        return self.reached.offset

    def chunks(self) -> Generator[tuple[SortedChanges, StorePosition]]:
        """Yield the records as sorted chunks, each with the position that it reaches."""
        with closing(prefetched(self._stretches())) as stretches:
            for batches, end in stretches:
                yield self._chunk(batches, end)

    def _stretches(self) -> Generator[tuple[list[Batch], StorePosition]]:
        """Yield the batches of each chunk, with the position that it reaches."""
        pending: list[Batch] = []
        while self.position < self._end:
            try:
                pending += self._fetch()
            except TransactionOpen:
                if pending:  # kept, so that the next restore continues after it
                    yield pending, self.reached
                raise
            if _is_full(pending, self._chunk_bytes):
                yield pending, self.reached
                pending = []
        if pending:
            yield pending, self.reached

    def _fetch(self) -> list[Batch]:
        """Fetch the next batches, waiting for stalled fetches and open transactions."""
        at = {self._partition: self.position}
        stalled, waited = 0, 0
        while stalled <= MAX_STALLED_POLLS and waited <= self._wait:
            # The end is not reached, so there is data and the first fetch does not wait. If only
            # markers are left, a fetch that waits for records would wait in vain.
            timeout = 1.0 if stalled or waited else 0.0
            found = self._broker.fetch(at, max_bytes=FETCH_BYTES, timeout=timeout)
            fetched = found[self._partition]
            if fetched.next_offset > self.position:
                self._check_history(fetched)
                self._check_complete()
                self.reached = self._after(fetched)
                return fetched.batches
            if fetched.last_stable_offset > self.position:
                stalled += 1
            else:
                waited += 1
                self._log_open_transaction(waited)
        what = (
            f"restoring {self._partition} stands still at offset {self.position}, before its "
            f"end {self._end}"
        )
        if stalled > MAX_STALLED_POLLS:
            raise RequestTimedOut(f"{what}; is the log's owner alive?")
        raise TransactionOpen(
            f"{what}; a transaction is open there, or the partition cannot be written after a "
            "failure",
            self._partition,
            self.position,
        )

    def _log_open_transaction(self, waited: int) -> None:
        """Report the progress, and log once that an open transaction delays the restore."""
        self._report(self.position)  # the callback may end the wait by raising
        if waited == LOG_WAIT_AFTER_S:
            log_open_transaction(self._partition, self.position)

    def _check_history(self, fetched: Fetched) -> None:
        """Raise Overtaken if the fetched records do not continue the history of the state.

        That happens if the log was replaced by a copy meanwhile: its owner died, the folder was
        replaced by a backup, and another process owns it now.
        """
        if not continues(fetched.epochs, self.position, self.reached.incarnation):
            raise Overtaken(f"before offset {self.position} the log has another history now")

    def _after(self, fetched: Fetched) -> StorePosition:
        """Return the position after the fetched records, with the epoch of the last one."""
        offset = fetched.next_offset
        if fetched.epochs:
            return self.reached.at(offset, epoch_before(fetched.epochs, offset))
        if not fetched.batches:
            return replace(self.reached, offset=offset)
        return replace(self.reached, offset=offset, leader_epoch=fetched.batches[-1].leader_epoch)

    def _check_complete(self) -> None:
        """Raise Overtaken if the records fetched from `position` may lack a deletion.

        Extend the end to the log's `superseding_end`.
        """
        now = self._broker.offsets([self._partition])[self._partition]
        if now.topic_id != self._origin.topic_id:
            raise Overtaken("its topic was deleted and created again")
        if now.must_start_over(self.position, self._origin.settled_end):
            raise Overtaken(
                f"deletions up to offset {now.purged_end} were removed from the log when it had "
                f"come to offset {self.position}; the topic's delete.retention.ms should be longer "
                "than it takes to read it"
            )
        self._end = max(self._end, now.superseding_end)

    def _chunk(
        self, batches: list[Batch], reached: StorePosition
    ) -> tuple[SortedChanges, StorePosition]:
        """Reduce batches to the last value of each key, sorted."""
        keys = _column(batches, "key")
        values = _column(batches, "value")
        if keys.null_count:
            raise CorruptLog(
                f"{self._partition} has records without a key, so it is not a changelog of a "
                "store; something else writes to it"
            )
        self.records += len(keys)
        self._report(reached.offset)
        names, latest = latest_per_key(keys, values)
        return (ArrowColumn[bytes](names), ArrowColumn[bytes | None](latest)), reached

    def _report(self, end: int) -> None:
        if self._progress is not None:
            remaining = max(0, self._end - end)
            seconds = self._clock.monotonic() - self._begun
            self._progress(ReplayProgress(self._partition, self.records, remaining, seconds))


def log_open_transaction(partition: TopicPartition, offset: int) -> None:
    """Log that a restore waits for a transaction that is open from `offset` on."""
    _log.warning(
        "restoring %s waits for a transaction that is open from offset %d on: it is "
        "aborted when another worker replaces the one that left it, or by its timeout",
        *(partition, offset),
        extra={"partition": str(partition), "offset": offset},
    )


class ArrowColumn(Generic[T]):
    """A column whose items become Python objects one piece at a time, while they are used.

    The objects of a piece take several times the memory of its column. They are freed before the
    next piece.
    """

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[T]:
        starts = range(0, len(self._array), PIECE_RECORDS)
        return chain.from_iterable(
            self._array[at : at + PIECE_RECORDS].to_pylist() for at in starts
        )


def prefetched(items: Generator[T]) -> Generator[T]:
    """Yield the items; another thread makes the next one while the current one is used.

    A caller that does not consume all items must close the generator. If the garbage collector
    closes it, that waits for the thread wherever the collector runs, and within `Thread.start` the
    wait never ends.
    """
    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="replay") as pool:
        coming: Future[T | None] = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def _column(batches: list[Batch], name: str) -> pa.Array:
    arrays = [batch.columns.column(name) for batch in batches]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _is_full(batches: list[Batch], chunk_bytes: int) -> bool:
    records = sum(map(len, batches))
    return records >= CHUNK_RECORDS or sum(b.columns.nbytes for b in batches) >= chunk_bytes
