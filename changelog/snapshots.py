"""Snapshots of a whole log at one moment, for copying its files while it is in use."""

from __future__ import annotations

from typing import Protocol

from strandline.changelog.errors import InvalidRequest


class Snapshots(Protocol):
    """The snapshots of one log, kept by its owner."""

    def take(self) -> str:
        """Keep all files as they are at this moment, and return the snapshot's name.

        The snapshot is what a kill of the owner at this moment would leave on disk, including
        transactions and committed offsets. Opening a copy of it recovers it as after a kill. It
        is kept until it is released, for at most a day, and at most as long as the owner lives.
        Raises StorageFailed.
        """
        ...

    def release(self, name: str) -> None:
        """Release a snapshot, if it still exists."""
        ...


def in_folder(snapshots: Snapshots | None) -> Snapshots:
    """Return `snapshots`. Raises InvalidRequest if it is None, because the log has no folder."""
    if snapshots is None:
        raise InvalidRequest("this log has no folder of its own, and so no snapshots")
    return snapshots
