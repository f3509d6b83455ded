"""A line between a client and the log on which a test can lose calls and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from strandline.changelog.broker import Broker
from strandline.changelog.errors import OwnerUnavailable, StorageFailed
from strandline.changelog.records import Append, Appended, ProducerIdentity
from tests.log.kit import World

LOST_CALL = OwnerUnavailable("the call got lost")
LOST_ANSWER = OwnerUnavailable("the answer got lost")
UNSAFE_AFTERWARDS = StorageFailed("written, but the fsync failed")
AFTERWARDS = (LOST_ANSWER, UNSAFE_AFTERWARDS)
Fault = Exception | None


class Line:
    """Forwards calls to the log that is open at the moment. `faults` apply to the next appends.

    A fault is None or an exception. It is raised instead of the call, or after the call if it is
    one of AFTERWARDS.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults: list[Fault] = []
        self.end_faults: list[Fault] = []
        self.appends: list[Append] = []

    @property
    def broker(self) -> Broker:
        """The line itself, typed as a broker."""
        return cast("Broker", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world.owner, name)

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        self.appends += appends
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault not in AFTERWARDS:
            raise fault
        answer = self.world.owner.append(appends)
        if fault is not None:
            raise fault
        return answer

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        fault = self.end_faults.pop(0) if self.end_faults else None
        if fault is not None and fault not in AFTERWARDS:
            raise fault
        answer = self.world.owner.end_transaction(producer, commit=commit)
        if fault is not None:
            raise fault
        return answer
