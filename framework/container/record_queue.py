"""Order in which a task instance handles the records of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.framework.container.inputs import Input
from strandline.framework.container.lookahead import LookAhead
from strandline.framework.decoding import Chunk
from strandline.statestore.store import AnyStore


class RecordRun(NamedTuple):
    """Records to handle next: those of a chunk from its `at` to the index `stop` (exclusive)."""

    source: Input
    chunk: Chunk
    stop: int


class RecordQueue:
    """The pending records of all inputs of an instance, merged by time.

    The oldest of the next records of the inputs comes first. Of equal times, the record whose input
    was declared first comes first. While an input has no pending records and a fetch may find some,
    the others wait, because its records may be older.
    """

    def __init__(
        self, inputs: Sequence[Input], stores: Sequence[AnyStore], *, tombstones: bool
    ) -> None:
        self._inputs = inputs
        self._tombstones = tombstones
        self._look_ahead = LookAhead(stores)

    @property
    def has_next(self) -> bool:
        """True if a record is pending and the next record of every input is known."""
        return any(source.pending for source in self._inputs) and self._is_answered

    def next(self, limit: int) -> RecordRun | None:
        """Return at most `limit` records to handle next; None if none are known yet.

        The state of their keys is read ahead if that helps.
        """
        run = self._first(limit) if len(self._inputs) == 1 else self._oldest(limit)
        if run is None:
            return None
        return run._replace(stop=self._look_ahead.limit(run.chunk, run.stop))

    @property
    def _is_answered(self) -> bool:
        return all(source.is_answered for source in self._inputs)

    def _first(self, limit: int) -> RecordRun | None:
        """Return the next records of the only input."""
        (source,) = self._inputs
        chunk = source.head(self._tombstones)
        if chunk is None:
            return None
        return RecordRun(source, chunk, min(len(chunk.records), chunk.at + limit))

    def _oldest(self, limit: int) -> RecordRun | None:
        """Return records of one of several inputs, up to the next one of another input."""
        heads = [source.head(self._tombstones) for source in self._inputs]
        if not self._is_answered:
            return None
        times = [(_timestamp(chunk), at) for at, chunk in enumerate(heads) if chunk is not None]
        if not times:
            return None
        (_, first), *others = sorted(times)
        source, chunk = self._inputs[first], heads[first]
        assert chunk is not None
        stop = min(len(chunk.records), chunk.at + limit)
        return RecordRun(source, chunk, _until(chunk, stop, first, others[0]) if others else stop)


def _timestamp(chunk: Chunk) -> int:
    return chunk.records[chunk.at].timestamp


def _until(chunk: Chunk, stop: int, number: int, next_best: tuple[int, int]) -> int:
    """Return the index of the first record that comes after the next one of another input.

    `next_best` has the time of that record and the number of its input; `number` is the own input.
    """
    latest = next_best[0] if number < next_best[1] else next_best[0] - 1
    first = chunk.at + 1
    for index in range(first, stop):
        if chunk.records[index].timestamp > latest:
            return index
    return max(first, stop)
