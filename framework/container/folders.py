"""Where the engines of an app's stores keep their files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from changelog.clock import Clock
from statestore.spec import StoreSpec
from statestore.store import PartitionStore, open_store


@dataclass(frozen=True)
class StoreFolders:
    """`<root>/<store>/<partition>/`; without a root every store is in memory."""

    root: Path | None
    clock: Clock

    def open(self, spec: StoreSpec[Any, Any], partition: int) -> PartitionStore[Any, Any]:
        """One partition of a store. Raises StorageFailed, FutureFormat."""
        if self.root is None:
            return open_store(replace(spec, engine="memory"), clock=self.clock)
        return open_store(spec, self.root / spec.name / str(partition), clock=self.clock)
