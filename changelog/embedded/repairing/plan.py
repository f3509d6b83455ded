"""What is going to be done and what is lost; and doing it, so that nothing more can be.

Every file that a step changes or removes is copied first, durably, to a folder of its own; the
steps come after all copies. Each step replaces files whole, and is harmless when repeated: after a
crash in the middle a new check finds what is left to do.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.names import REPAIRED
from strandline.changelog.embedded.scanning import CHUNK
from strandline.changelog.storage import Storage

Act = Callable[[Storage, str], None]
"""Given the storage, and the folder that keeps what is moved out of the way."""


@dataclass(frozen=True)
class RepairStep:
    """One thing to be done."""

    what: str
    act: Act
    touches: tuple[str, ...] = ()
    """Files that it changes or removes."""


@dataclass
class RepairPlan:
    """What a repair is going to do."""

    steps: list[RepairStep] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """What cannot be had again, a sentence each."""
    left: list[str] = field(default_factory=list)
    """What stays as it is, since nothing says what would be right."""

    def add(self, what: str, act: Act, touches: Iterable[str] = ()) -> None:
        """One more step."""
        self.steps.append(RepairStep(what, act, tuple(touches)))


def carry_out(plan: RepairPlan, storage: Storage, clock: Clock) -> str:
    """Copy what is going to change, then do all steps; return the folder of the copies.

    Raises StorageFailed, DiskFull: before the first step nothing was changed then.
    """
    kept = _new_folder(storage, clock)
    for path in dict.fromkeys(path for step in plan.steps for path in step.touches):
        if storage.exists(path):
            copy(storage, path, f"{kept}/{path}")
    for step in plan.steps:
        step.act(storage, kept)
    return kept


def copy(storage: Storage, source: str, target: str) -> None:
    """Copy a file, durably."""
    folder = target.rpartition("/")[0]
    storage.make_dir(folder)
    with closing(storage.open(source)) as old, closing(storage.create(target)) as new:
        position = 0
        while data := old.read(position, CHUNK):
            new.append(data)
            position += len(data)
        new.sync()
    storage.sync_dir(folder)


def remove(storage: Storage, paths: Iterable[str]) -> None:
    """Remove files, durably."""
    for path in paths:
        storage.unlink(path)
        storage.sync_dir(path.rpartition("/")[0])


def _new_folder(storage: Storage, clock: Clock) -> str:
    """A folder of `repaired/`, named for the time; what an earlier run has kept stays as it is."""
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    name = f"{REPAIRED}/{now:%Y-%m-%dT%H-%M-%SZ}"
    number = 1
    while storage.exists(name if number == 1 else f"{name}.{number}"):
        number += 1
    name = name if number == 1 else f"{name}.{number}"
    storage.make_dir(name)
    return name
