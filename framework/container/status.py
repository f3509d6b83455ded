"""What a worker is doing, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from changelog.records import TopicPartition

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
