"""Decision whether a partition may be written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from strandline.changelog.errors import (
    NO_EFFECT_ERRORS,
    OwnerUnavailable,
    PartitionPoisoned,
    StorageFailed,
    StrandlineError,
    UnknownTopic,
)
from strandline.changelog.records import TopicPartition


class WriteGate:
    """State of a partition that rejects appends after a failure, a deletion or a close.

    The caller holds the partition's lock where it needs one.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._refused: StrandlineError | None = None
        """Reason why nothing can be written: a failure, a deleted topic, or a closed log."""

    @property
    def retired(self) -> bool:
        """True if the topic was deleted."""
        return isinstance(self._refused, UnknownTopic)

    @property
    def usable(self) -> bool:
        """True if the partition accepts appends, provided that there is room on the disk."""
        return self._refused is None

    @property
    def poisoned(self) -> bool:
        """True if a write or fsync has failed since the opening."""
        return isinstance(self._refused, StorageFailed)

    def check(self) -> None:
        """Raise PartitionPoisoned after a failed write or fsync, UnknownTopic after a deletion."""
        self.check_not_poisoned()
        if self._refused is not None:
            raise self._refused

    def check_not_poisoned(self) -> None:
        """Raise PartitionPoisoned after a failed write or fsync.

        Also called after an fsync, because the operating system reports a failed write-back to only
        one of several concurrent fsyncs.
        """
        if self.poisoned:
            raise PartitionPoisoned(
                f"{self._partition} cannot be written after an earlier failure "
                f"({self._refused}); reopen the log once the cause is fixed"
            )

    def poison(self, error: StorageFailed) -> None:
        """Reject all appends from now on: after this failure the content of the disk is unknown.

        Only recovery, at the next opening, can find out what is there.
        """
        self._refused = self._refused or error

    @contextlib.contextmanager
    def atomic_or_poisoned(self) -> Iterator[None]:
        """Poison the partition if a change of the log's end fails in a way that was not undone."""
        try:
            yield
        except NO_EFFECT_ERRORS:
            raise
        except StorageFailed as error:
            self.poison(error)
            raise
        except BaseException as error:  # MemoryError or an interrupt, between any two steps
            self.poison(StorageFailed(f"a write was interrupted: {type(error).__name__}: {error}"))
            raise

    def retire(self) -> None:
        """Reject all appends from now on, because the topic was deleted."""
        self._refused = UnknownTopic(f"topic {self._partition.topic!r} was deleted")

    def shut(self) -> None:
        """Reject all appends from now on, because the log is being closed."""
        self._refused = self._refused or OwnerUnavailable(
            "the log is closed; open it again with changelog.open"
        )
