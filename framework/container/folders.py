"""Where the engines of an app's stores keep their files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from strandline.changelog.clock import Clock
from strandline.statestore.counters import StoreCounters
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore, open_store
from strandline.statestore.values import Expiry


@dataclass(frozen=True)
class StoreFolders:
    """`<root>/<store>/<partition>/`; without a root every store is in memory."""

    root: Path | None
    clock: Clock
    counters: dict[str, StoreCounters] = field(default_factory=dict, compare=False, kw_only=True)
    """By the name of the store, of all its partitions that were opened here but for copies."""

    def open(
        self,
        spec: AnySpec,
        partition: int,
        lock_timeout: float = 0.0,
        expiry: Expiry | None = None,
    ) -> AnyStore:
        """Open one partition of a store. Raises StorageFailed, FutureFormat.

        `expiry` is what is recorded for the store; see `statestore.declaration`.
        A holder that does not let go within `lock_timeout` seconds is stalled: the store is
        restored into a fresh folder beside its own then.
        """
        counters = self.counters.setdefault(spec.name, StoreCounters())
        if self.root is None:
            memory = replace(spec, engine="memory")
            return open_store(memory, clock=self.clock, counters=counters, expiry=expiry)
        folder = self.root / spec.name / str(partition)
        return open_store(
            spec,
            folder,
            clock=self.clock,
            lock_timeout=lock_timeout,
            counters=counters,
            expiry=expiry,
        )

    def open_copy(self, spec: AnySpec, partition: int) -> AnyStore:
        """A copy of it for a standby, in a folder beside its own."""
        if self.root is None:
            return open_store(replace(spec, engine="memory"), clock=self.clock)
        from strandline.statestore.engines.folders import open_beside

        engine = open_beside(self.root / spec.name / str(partition), self.clock)
        return open_store(spec, clock=self.clock, engine=engine)
