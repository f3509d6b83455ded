"""Snapshots of a log that another process owns."""

from __future__ import annotations

from strandline.changelog.flight.requests import Ask, ReleaseSnapshot, TakeSnapshot


class RequestedSnapshots:
    """Implementation of Snapshots by the requests that `ask` sends to the owner."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def take(self) -> str:
        name: str = self._ask(TakeSnapshot())
        return name

    def release(self, name: str) -> None:
        self._ask(ReleaseSnapshot(name))
