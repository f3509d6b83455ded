"""How much of the machine the cleaner may take."""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """Kafka's `log.cleaner.*`."""

    enable: bool = True
    """Whether the cleaner runs by itself; on request it always does."""
    threads: int = 1
    dedupe_buffer_size: int = 128 << 20
    """Bytes for the keys of the dirty sections, all threads together."""
    io_max_bytes_per_second: float = UNLIMITED
    """Read and written, all threads together."""
    backoff_ms: int = 15_000
    """How long to wait when nothing is due, and after a first failure."""
