"""Return of freed memory to the system.

Allocators keep freed memory for later allocations. That is faster, but after clients have ended
that held many records, the process would keep the memory of all of them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa

_malloc_trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Function of glibc; other C libraries have none."""


def release_free_memory() -> None:
    """Return memory that is allocated but not used, as far as the allocators can."""
    pa.default_memory_pool().release_unused()
    if _malloc_trim is not None:
        _malloc_trim(0)
