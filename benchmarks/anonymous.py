"""Anonymous memory of a process: what it has allocated, without files that the kernel caches."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pyarrow as pa


def anonymous_mib(pid: int | str = "self") -> float:
    """Return the anonymous memory of a process in MiB. Needs Linux."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, size = line.partition(":")
        if name == "Anonymous":
            return int(size.split()[0]) / 1024
    raise LookupError(f"/proc/{pid}/smaps_rollup has no line Anonymous")


def give_back() -> None:
    """Let the allocators return free pages. Pages that are free in Python's own allocator stay."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
