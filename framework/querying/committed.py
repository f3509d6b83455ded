"""Committed state of one store as bytes, from its workers, or from its changelogs if none runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from strandline.framework.parts import Entry
from strandline.framework.querying.folded import ReplayedSource
from strandline.framework.querying.messages import StoreDescription
from strandline.framework.querying.placement import Placement
from strandline.framework.querying.workers import Fleet, NoWorkerAnswers, Source, WorkerSource
from strandline.statestore.declaration import Declaration
from strandline.statestore.engine import StorePosition
from strandline.statestore.reader import PAGE_ENTRIES, KeyRange

T = TypeVar("T")
P = ParamSpec("P")

Question = Callable[Concatenate[StoreDescription | None, Source, P], T]
"""Reads from a source, given the store's description if a worker has ever sent it."""

FIRST_PAGE_ENTRIES = 64
"""Number of entries in the first page of a scan; later pages are larger."""


def entries(source: Source, partition: int, bounds: KeyRange) -> Iterator[Entry[bytes]]:
    """Yield the entries of a partition within `bounds` in order, read page by page."""
    rest: KeyRange | None = bounds
    limit = FIRST_PAGE_ENTRIES
    while rest is not None:
        found, rest = source.page(partition, rest, limit)
        for key, data in found:
            yield key, partition, data
        limit = min(4 * limit, PAGE_ENTRIES)


class CommittedSource:
    """Implementation of `Source` for all partitions of a store. Thread-safe.

    It raises the errors of `Fleet` except NoWorkerAnswers: then it reads the changelogs.
    """

    def __init__(
        self,
        store: str,
        fleet: Fleet,
        replayed: ReplayedSource,
        placement: Placement,
        partitions: int,
    ) -> None:
        self.partitions = range(partitions)
        self.home = placement.home
        self._store = store
        self._fleet = fleet
        self._replayed = replayed
        self._known: tuple[StoreDescription, Source] | None = None
        """Description of the store and the source by workers; None until a worker has answered."""

    def declaration(self) -> Declaration | None:
        """Return the recorded declaration, by which changelogs are read; None if there is none.

        Raises InvalidConfig if some values have not been rewritten for it yet.
        """
        return self._replayed.declaration()

    def recorded(self) -> Declaration | None:
        """Return the recorded declaration of the store; None if there is none."""
        return self._replayed.recorded()

    def ask(self, question: Question[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `question` on the workers, or on the changelogs if no worker answers.

        It gets the other arguments after the description and the source.
        """
        description, source = self._known or self._current()
        try:
            return question(description, source, *args, **kwargs)
        except NoWorkerAnswers:
            return question(description, self._replayed, *args, **kwargs)

    def read(
        self, partitions: Collection[int], keys: Sequence[bytes]
    ) -> dict[int, list[bytes | None]]:
        return self.ask(lambda _description, source: source.read(partitions, keys))

    def page(
        self, partition: int, bounds: KeyRange, limit: int
    ) -> tuple[Sequence[tuple[bytes, bytes]], KeyRange | None]:
        return self.ask(lambda _description, source: source.page(partition, bounds, limit))

    def stream(self, partition: int, bounds: KeyRange) -> Iterator[Entry[bytes]]:
        """Yield the entries of a partition within `bounds` in order."""
        return entries(self, partition, bounds)

    def position(self, partition: int) -> StorePosition | None:
        return self.ask(lambda _description, source: source.position(partition))

    def at_once(
        self, partition: int, read: Callable[[Source], Mapping[bytes, bytes]]
    ) -> dict[bytes, bytes]:
        """Return entries of a partition as of one moment, for a store without a time to live.

        Args:
            partition: Number of the partition.
            read: Function that reads the entries, in any number of requests.

        Returns:
            The entries in the order of keys; others of the partition may be among them.
        """
        before = self.position(partition)
        found = read(self)
        if before == self.position(partition):
            return dict(found)
        return dict(self._replayed.continued(partition, found, before))

    def count(self, partitions: Collection[int]) -> int:
        return self.ask(lambda _description, source: source.count(partitions))

    def _current(self) -> tuple[StoreDescription | None, Source]:
        try:
            description = self._fleet.describe(self._store)
        except NoWorkerAnswers:
            return None, self._replayed
        source = WorkerSource(self._fleet, self._store, description.inputs)
        self._known = description, source
        return self._known
