"""How an app is run: guarantees, intervals, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.groups import MAX_STANDBY_REPLICAS
from strandline.changelog.settings import INT_MAX, check_number

Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]
Until = Literal["idle", "end"]
UNTIL = ("idle", "end")
GUARANTEES = ("exactly_once", "at_least_once", "at_most_once")


@dataclass(frozen=True)
class Options:
    """The settings of a worker. Raises InvalidConfig."""

    processing_guarantee: Guarantee = "exactly_once"
    """What a crash may do: nothing; repeat records; lose records."""
    commit_interval_ms: int = 100
    """The longest time between two commits while there is something to commit."""
    commit_records: int = 100_000
    """Commit after so many records, however little time has passed."""
    transaction_timeout_ms: int = 10_000
    """How long a commit may take before the log gives it up."""
    fetch_bytes: int = 4 << 20
    """About how much is read of a partition at a time."""
    poll_ms: int = 100
    """The longest wait for new records at a time; a stop is noticed after it."""
    restore_threads: int = 4
    """How many partitions' stores are restored at once."""
    session_timeout_ms: int = 10_000
    """A worker that was not heard of for so long has lost its partitions to the others."""
    max_poll_interval_ms: int = 300_000
    """So has one whose handlers let it do nothing else for so long."""
    standby_replicas: int = 0
    """How many other workers keep a copy of each partition's stores."""
    instance: str | None = None
    """The name of a static member (KIP-345): its partitions wait for it, for a session timeout."""
    application_server: str | None = None
    """Where it answers queries from other machines; see `App`."""

    def __post_init__(self) -> None:
        if self.processing_guarantee not in GUARANTEES:
            raise InvalidConfig(
                f"processing_guarantee is one of {GUARANTEES}, got {self.processing_guarantee!r}"
            )
        for name in ("commit_interval_ms", "transaction_timeout_ms", "poll_ms"):
            check_number(name, getattr(self, name), 1)
        for name in ("session_timeout_ms", "max_poll_interval_ms"):
            check_number(name, getattr(self, name), 1)
        for name in ("commit_records", "fetch_bytes", "restore_threads"):
            check_number(name, getattr(self, name), 1, INT_MAX)
        if not 0 <= self.standby_replicas <= MAX_STANDBY_REPLICAS:
            raise InvalidConfig(
                f"standby_replicas is 0 to {MAX_STANDBY_REPLICAS}, got {self.standby_replicas!r}"
            )
