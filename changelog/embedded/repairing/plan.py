"""The plan of a repair, and its execution.

1. Copy every file that a step changes or removes, durably, to a new folder below `repaired/`.
2. Execute the steps. Each one replaces whole files and may be repeated.

After a crash between steps, a new check finds the remaining problems.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.scanning import CHUNK_BYTES
from strandline.changelog.layout import REPAIRED
from strandline.changelog.storage import Storage

Act = Callable[[Storage, str], None]
"""Executes a step, given the storage and the folder for files that are moved away."""


@dataclass(frozen=True)
class RepairStep:
    """One step of a repair."""

    what: str
    """Description in the imperative."""
    act: Act
    touches: tuple[str, ...] = ()
    """Paths of the files that the step changes or removes."""


@dataclass
class RepairPlan:
    """The steps of a repair, its losses, and the findings that it cannot repair."""

    steps: list[RepairStep] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """Descriptions of what is lost."""
    left: list[str] = field(default_factory=list)
    """Findings that are left unchanged, because nothing shows what would be right."""

    def add(self, what: str, act: Act, touches: Iterable[str] = ()) -> None:
        """Add a step."""
        self.steps.append(RepairStep(what, act, tuple(touches)))


def carry_out(plan: RepairPlan, storage: Storage, clock: Clock) -> str:
    """Copy the files that will change, then execute all steps; return the folder of the copies.

    Raises StorageFailed, DiskFull. An error while copying leaves the log unchanged.
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
        while data := old.read(position, CHUNK_BYTES):
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
    """Create a folder below `repaired/`, named after the time; copies of earlier runs are kept."""
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    name = f"{REPAIRED}/{now:%Y-%m-%dT%H-%M-%SZ}"
    number = 1
    while storage.exists(name if number == 1 else f"{name}.{number}"):
        number += 1
    name = name if number == 1 else f"{name}.{number}"
    storage.make_dir(name)
    return name
