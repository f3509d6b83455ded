"""A log on the storage twin, and what befalls it: hooks that fail, stop, or let others act."""

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
    """A log on such a storage, which dies either death and is opened again."""

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
    """An error of the disk at the first `times` operations of a kind, in paths with `where`."""
    left = [times]

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path and left[0] > 0:
            left[0] -= 1
            raise error or StorageFailed(f"cannot {kind} {operation.path}: Input/output error")

    return hook


def stopping(kind: Kind, where: str = "") -> Hook:
    """The process dies at the first operation of a kind in a path with `where`."""

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path:
            raise Died(f"at {kind} {operation.path}")

    return hook


def stopping_after(count: int) -> Hook:
    """The process does `count` more operations and dies at the next."""
    left = [count]

    def hook(operation: Operation) -> None:
        if operation.kind != "read":
            left[0] -= 1
            if left[0] < 0:
                raise Died(f"at {operation.kind} {operation.path}")

    return hook


def doing(action: Callable[[], object], kind: Kind, where: str = "") -> Hook:
    """Something else happens, once, just before the first operation of a kind in such a path."""
    done: list[Operation] = []

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path and not done:
            done.append(operation)
            action()

    return hook


T = TypeVar("T")
R = TypeVar("R")


def taking_turns(environment: LogContext, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """In place of LogContext.in_parallel: no threads, so that a seed gives the same story again.

    The order is chance's, as it is the scheduler's.
    """
    order = sorted(range(len(items)), key=lambda i: getattr(items[i], "folder", ""))
    storage = environment.storage
    if isinstance(storage, PowerStorage) and storage.chance is not None:
        storage.chance.shuffle(order)
    results = {i: call(items[i]) for i in order}
    return [results[i] for i in range(len(items))]
