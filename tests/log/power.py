"""A log on the storage twin, and hooks that fail, stop the process, or run something in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import StorageFailed
from tests.crash.twin import Died, Hook, Kind, NameChange, Operation, PowerStorage
from tests.log.kit import World


@dataclass
class PowerWorld(World):
    """A log on a storage twin that dies by kill or power cut and is opened again."""

    storage: PowerStorage = field(default_factory=PowerStorage)

    def crash(self) -> Owner:
        self.storage.crash()
        return self.open()

    def power_cut(self, keep: Callable[[NameChange], bool] | None = None) -> Owner:
        self.storage.power_cut(keep)
        return self.open()


# Hooks --------------------------------------------------------------------------------


def failing(
    kind: Kind, where: str = "", *, error: StorageFailed | None = None, times: int = 1 << 62
) -> Hook:
    """Fail the first `times` operations of a kind in paths that contain `where` with a disk
    error."""
    left = [times]

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path and left[0] > 0:
            left[0] -= 1
            raise error or StorageFailed(f"cannot {kind} {operation.path}: Input/output error")

    return hook


def stopping(kind: Kind, where: str = "") -> Hook:
    """Kill the process at the first operation of a kind in a path that contains `where`."""

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path:
            raise Died(f"at {kind} {operation.path}")

    return hook


def stopping_after(count: int) -> Hook:
    """Kill the process at the operation after the next `count` ones. Reads do not count."""
    left = [count]

    def hook(operation: Operation) -> None:
        if operation.kind != "read":
            left[0] -= 1
            if left[0] < 0:
                raise Died(f"at {operation.kind} {operation.path}")

    return hook


def doing(action: Callable[[], object], kind: Kind, where: str = "") -> Hook:
    """Run `action` once, just before the first operation of a kind in a path that contains
    `where`."""
    done: list[Operation] = []

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path and not done:
            done.append(operation)
            action()

    return hook


T = TypeVar("T")
R = TypeVar("R")


def taking_turns(context: LogContext, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Replace LogContext.in_parallel: run the calls without threads, so that a seed always gives the
    same run.

    The order is drawn from the storage's random numbers, as arbitrary as a scheduler's.
    """
    order = sorted(range(len(items)), key=lambda i: getattr(items[i], "folder", ""))
    storage = context.storage
    if isinstance(storage, PowerStorage) and storage.chance is not None:
        storage.chance.shuffle(order)
    results = {i: call(items[i]) for i in order}
    return [results[i] for i in range(len(items))]
