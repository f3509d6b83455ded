"""Settings of a worker: guarantees, intervals, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.groups import MAX_STANDBY_REPLICAS
from strandline.changelog.settings import INT_MAX, LONG_MAX, check_choice, check_number
from strandline.statestore.memory import DEFAULT_MEMORY_BYTES, MIN_MEMORY_BYTES

Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]
Until = Literal["idle", "end"]
UNTIL = ("idle", "end")
GUARANTEES = ("exactly_once", "at_least_once", "at_most_once")


@dataclass(frozen=True)
class Options:
    """Settings of a worker. Construction raises InvalidConfig if one is not valid."""

    processing_guarantee: Guarantee = "exactly_once"
    """Effect of a crash on the results: none, repeated records, or lost records."""
    commit_interval_ms: int = 100
    """Maximum number of milliseconds between two commits while there is something to commit."""
    commit_records: int = 100_000
    """Number of records after which a commit follows even before `commit_interval_ms`."""
    transaction_timeout_ms: int = 10_000
    """Milliseconds after which the log aborts a commit that has not ended."""
    fetch_bytes: int = 4 << 20
    """Approximate number of bytes read of a partition at a time."""
    poll_ms: int = 100
    """Maximum milliseconds of one wait for new records. A stop is noticed after it."""
    restore_threads: int = 4
    """Number of partitions whose stores are restored at the same time."""
    session_timeout_ms: int = 10_000
    """Milliseconds without a heartbeat after which a worker loses its partitions."""
    max_poll_interval_ms: int = 300_000
    """Milliseconds that a worker may spend in handlers alone before it loses its partitions."""
    standby_replicas: int = 0
    """Number of other workers that keep a copy of each partition's stores."""
    instance: str | None = None
    """Name of a static member (KIP-345). Its partitions wait for its return for a session timeout.
    """
    memory: int = DEFAULT_MEMORY_BYTES
    """Bytes of memory for the stores and records of a process; see `statestore.memory`."""
    application_server: str | None = None
    """Address for queries from other machines; see `App`."""

    def __post_init__(self) -> None:
        check_choice("processing_guarantee", self.processing_guarantee, GUARANTEES)
        for name in ("commit_interval_ms", "transaction_timeout_ms", "poll_ms"):
            check_number(name, getattr(self, name), 1)
        for name in ("session_timeout_ms", "max_poll_interval_ms"):
            check_number(name, getattr(self, name), 1)
        for name in ("commit_records", "fetch_bytes", "restore_threads"):
            check_number(name, getattr(self, name), 1, INT_MAX)
        check_number("memory", self.memory, MIN_MEMORY_BYTES, LONG_MAX)
        if not 0 <= self.standby_replicas <= MAX_STANDBY_REPLICAS:
            raise InvalidConfig(
                f"standby_replicas is 0 to {MAX_STANDBY_REPLICAS}, got {self.standby_replicas!r}"
            )
