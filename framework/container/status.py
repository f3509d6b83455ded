"""State and positions of a worker as plain data. May be read from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from strandline.changelog.errors import DiskFull
from strandline.changelog.records import TopicPartition

if TYPE_CHECKING:
    from strandline.framework.container.manager import TaskManager
    from strandline.framework.container.session import WorkerSession

WorkerState = Literal["joining", "restoring", "running", "waiting for disk"]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """State, counters and positions of a worker at one moment."""

    state: WorkerState
    handled: int
    """Number of records handled and committed since the worker was created."""
    commits: int
    """Number of commits since the worker was created."""
    positions: Mapping[TopicPartition, int | None]
    """Committed offset by owned input partition; None while its tasks are restored."""


def state_of(waits_for: DiskFull | None, session: WorkerSession, tasks: TaskManager) -> WorkerState:
    """Return the state of a worker, given its error for a full disk, its session and its tasks."""
    if waits_for is not None:
        return "waiting for disk"
    if session.membership is None:
        return "joining"
    return "restoring" if tasks.is_opening else "running"


def positions_of(tasks: TaskManager) -> dict[TopicPartition, int | None]:
    """Return `WorkerStatus.positions`. Without a commit, a partition is at its starting offset."""
    positions: dict[TopicPartition, int | None] = dict.fromkeys(tasks.owned)
    for source in [source for instance in tasks.instances for source in instance.inputs]:
        last = tasks.committed.get(source.partition)
        positions[source.partition] = source.committed if last is None else last.offset
    return positions


def lags(
    positions: Mapping[TopicPartition, int | None], stable_ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the number of offsets from each position to the partition's end, if both are known.

    >>> words = TopicPartition("words", 0), TopicPartition("words", 1)
    >>> list(lags({words[0]: 5, words[1]: None}, {words[0]: 7, words[1]: 7}).values())
    [2]
    """
    return {
        tp: max(0, stable_ends[tp] - position)
        for tp, position in sorted(positions.items())
        if position is not None and tp in stable_ends
    }
