"""Snapshots of a whole log at one moment, for who copies its files while it is in use."""

from __future__ import annotations

from typing import Protocol

from strandline.changelog.errors import InvalidRequest


class Snapshots(Protocol):
    """The snapshots of one log, kept by its owner."""

    def take(self) -> str:
        """Keep all files as they are at this moment; return the snapshot's name.

        What is kept is what a kill of the owner at this moment would leave, transactions and committed
        offsets included: opening a copy of it recovers it. It stays until it is released, for a day at
        most, and no longer than the owner. Raises StorageFailed.
        """
        ...

    def release(self, name: str) -> None:
        """Let go of a snapshot; harmless if it is gone."""
        ...


def in_folder(snapshots: Snapshots | None) -> Snapshots:
    """The snapshots of a log that has a folder. Raises InvalidRequest for one that has none."""
    if snapshots is None:
        raise InvalidRequest("this log has no folder of its own, and so no snapshots")
    return snapshots
