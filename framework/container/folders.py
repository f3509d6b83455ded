"""Folders in which the engines of an app's stores keep their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from strandline.changelog.clock import Clock
from strandline.changelog.location import check_present
from strandline.statestore.counters import StoreCounters
from strandline.statestore.memory import MemoryBudget
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore, open_store
from strandline.statestore.values import Expiry


@dataclass(frozen=True)
class StoreFolders:
    """Opens stores in `<root>/<store>/<partition>/`; without a root, every store is in memory."""

    root: Path | None
    clock: Clock
    counters: dict[str, StoreCounters] = field(default_factory=dict, compare=False, kw_only=True)
    """Counters by store name, shared by all its partitions opened here except standby copies."""
    memory: MemoryBudget = field(default_factory=MemoryBudget, compare=False, kw_only=True)
    """Memory of all stores opened here."""
    log: Path | None = field(default=None, kw_only=True)
    """Folder of the log, in which `root` may be; None if it is on another machine."""

    def open(
        self,
        spec: AnySpec,
        partition: int,
        lock_timeout: float = 0.0,
        expiry: Expiry | None = None,
        *,
        columns: bool = False,
    ) -> AnyStore:
        """Open one partition of a store.

        Args:
            spec: The declared store.
            partition: Number of the partition.
            lock_timeout: Seconds to wait for another holder of the folder's lock. A holder that
                keeps it longer is stalled: the store then gets a fresh folder beside its own.
            expiry: Where the store's values carry an expiry, as recorded in the log
                (`statestore.declaration`); None if nothing is recorded.
            columns: True for a store whose values are columns, for batch tasks.

        Raises:
            StorageFailed: The engine cannot be opened.
            FolderLost: The log folder that the root is in was removed or moved.
            FutureFormat: The files were written by a newer version.
        """
        self._check_log()
        counters = self.counters.setdefault(spec.name, StoreCounters())
        folder = None
        if self.root is not None and spec.engine != "memory":
            folder = self.root / spec.name / str(partition)
            self.memory.share_engines()
        return _opener(columns=columns)(
            spec,
            folder,
            clock=self.clock,
            lock_timeout=lock_timeout,
            counters=counters,
            expiry=expiry,
            memory=self.memory,
        )

    def open_copy(self, spec: AnySpec, partition: int) -> AnyStore:
        """Open a standby copy of a store partition in a folder beside the store's own.

        Raises as `open` does.
        """
        self._check_log()
        if self.root is None:
            return open_store(replace(spec, engine="memory"), clock=self.clock, memory=self.memory)
        from strandline.statestore.engines.folders import open_beside

        engine = open_beside(self.root / spec.name / str(partition), self.clock)
        return open_store(spec, clock=self.clock, engine=engine, memory=self.memory)

    def _check_log(self) -> None:
        """Raise FolderLost if a folder would be made at the path of a log that is gone."""
        if self.log is not None and self.root is not None and self.root.is_relative_to(self.log):
            check_present(self.log)


def _opener(*, columns: bool) -> Callable[..., AnyStore]:
    """Return the function that opens a store, which is imported when it is first needed."""
    if not columns:
        return open_store
    from strandline.statestore.column_store import open_column_store

    return open_column_store
