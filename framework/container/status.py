"""What a worker is doing, as plain data. Looked at from other threads than the worker's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from changelog.errors import DiskFull
from changelog.records import TopicPartition
from framework.container.manager import TaskManager
from framework.container.seat import Seat

WorkerState = Literal["joining", "restoring", "running", "waiting for disk"]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker at one moment."""

    state: WorkerState
    handled: int
    """Records handled and committed since the worker was made."""
    commits: int
    positions: Mapping[TopicPartition, int | None]
    """Committed offsets of the input partitions it holds; None while their tasks are restored."""


def state_of(waits_for: DiskFull | None, seat: Seat, tasks: TaskManager) -> WorkerState:
    """What it is busy with."""
    if waits_for is not None:
        return "waiting for disk"
    if seat.place is None:
        return "joining"
    return "restoring" if tasks.is_opening else "running"


def positions_of(tasks: TaskManager) -> dict[TopicPartition, int | None]:
    """See `WorkerStatus.positions`; a partition of which nothing is committed is where it began."""
    positions: dict[TopicPartition, int | None] = dict.fromkeys(tasks.held)
    for source in [source for instance in tasks.instances for source in instance.inputs]:
        last = tasks.committed.get(source.partition)
        positions[source.partition] = source.origin if last is None else last.offset
    return positions
