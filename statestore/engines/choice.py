"""Choice of the engine for a partition of a store."""

from __future__ import annotations

import os
from typing import Any

from strandline.changelog.clock import Clock
from strandline.statestore.engine import Engine
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.spec import StoreSpec


def engine_of(
    spec: StoreSpec[Any, Any],
    folder: str | os.PathLike[str] | None,
    lock_timeout: float,
    clock: Clock,
) -> Engine:
    """Open the engine that the spec names: RocksDB in `folder`, or memory; memory without a folder.

    `lock_timeout` is the seconds to wait for another holder of the folder's lock. Raises
    FutureFormat, StorageFailed, DiskFull.
    """
    if spec.engine == "memory" or folder is None:
        return MemoryEngine()
    from strandline.statestore.engines.folders import open_when_free  # it imports RocksDB

    return open_when_free(folder, timeout=lock_timeout, clock=clock)
