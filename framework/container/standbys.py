"""Standby copies: stores of partitions that other workers own, kept up to date.

A thread opens the copies in folders beside the partitions' own and replays their changelogs every
INTERVAL_S. Before a worker opens such a partition, its copy is closed here. Opening the store then
takes over the copy's files, so that only the end of the changelog is left to replay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import StorageFailed, StrandlineError
from strandline.changelog.rate_limited_log import RateLimitedLog
from strandline.changelog.records import TopicPartition
from strandline.framework.container.folders import StoreFolders
from strandline.statestore.replay import ReplayProgress
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore

_log = logging.getLogger("strandline")

INTERVAL_S = 0.5
"""Seconds between two rounds of catching up."""

Wanted = Mapping[TopicPartition, AnySpec]
"""The changelog partitions to follow, with the specs of their stores."""


class CatchUpInterrupted(Exception):
    """Raised in a replay to end it early, because a copy is to be closed."""


@dataclass(eq=False)
class StandbyStore:
    """An open standby copy of a store."""

    store: AnyStore
    offset: int = 0
    """End (exclusive) of the replayed part of the changelog."""


class Standbys:
    """The standby copies of one worker. Thread-safe."""

    def __init__(self, broker: Broker, clock: Clock, folders: StoreFolders) -> None:
        self._broker = broker
        self._folders = folders
        self._wanted: Wanted = {}
        self._copies: dict[TopicPartition, StandbyStore] = {}
        self._at_work = threading.Lock()
        """Held during a round and while copies are closed."""
        self._choosing = threading.Lock()
        """Guards `_wanted` and `_awaited`, which the worker and the restoring threads change."""
        self._awaited = 0
        """Number of threads that wait in `release`; a running round ends early for them."""
        self._woken = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._failures = RateLimitedLog(_log, clock)

    def follow(self, wanted: Wanted) -> None:
        """Keep copies of these stores and of no others; start the thread at the first call."""
        with self._choosing:
            self._wanted = dict(wanted)
        self._woken.set()
        if self._thread is None and wanted:
            self._thread = threading.Thread(
                target=self._run, name="strandline-standbys", daemon=True
            )
            self._thread.start()

    def release(self, changelogs: Collection[TopicPartition]) -> None:
        """Close the copies of these changelogs at once, because their stores are to be opened."""
        with self._choosing:
            self._awaited += 1
            others = {tp: spec for tp, spec in self._wanted.items() if tp not in changelogs}
            self._wanted = others
        try:
            with self._at_work:
                self._close(self._copies.keys() & set(changelogs))
        finally:
            with self._choosing:
                self._awaited -= 1

    def positions(self) -> dict[TopicPartition, int]:
        """Return the changelog offset of each copy, by changelog partition."""
        return {tp: copy.offset for tp, copy in list(self._copies.items())}

    def close(self) -> None:
        """End the thread and close all copies. Their files stay."""
        self._closed = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        with self._at_work:
            self._close(self._copies.keys())
        self._failures.close()

    # Its own thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            with self._at_work:
                self._catch_up()
            self._woken.wait(INTERVAL_S)
            self._woken.clear()

    def _catch_up(self) -> None:
        """Run one round: close unwanted copies, open missing ones, and replay their changelogs."""
        wanted = self._wanted
        self._close(self._copies.keys() - wanted.keys())
        for changelog, spec in wanted.items():
            if self._is_interrupted:
                return
            try:
                copy = self._copies.get(changelog)
                if copy is None:
                    store = self._folders.open_copy(spec, changelog.partition)
                    copy = self._copies[changelog] = StandbyStore(store)
                restored = copy.store.restore(self._broker, changelog, self._report(), wait=None)
                copy.offset = restored.position.offset
            except CatchUpInterrupted:
                return
            except StrandlineError as error:
                if isinstance(error, StorageFailed):
                    # An engine whose write failed refuses further ones until it is opened again.
                    self._close(self._copies.keys() & {changelog})
                text = f"the copy of {changelog} is not up to date: {error}"
                self._failures.note(text, partition=str(changelog), error=error)

    def _report(self) -> Callable[[ReplayProgress], None]:
        """Return a progress callback that ends the replay early if a thread waits in `release`."""

        def report(_: ReplayProgress) -> None:
            if self._is_interrupted:
                raise CatchUpInterrupted

        return report

    @property
    def _is_interrupted(self) -> bool:
        return self._closed or self._awaited > 0

    def _close(self, changelogs: Collection[TopicPartition]) -> None:
        for changelog in list(changelogs):
            self._copies.pop(changelog).store.close()
