"""What a worker says of itself, as a line of JSON."""

from __future__ import annotations

import msgspec

from strandline.changelog.decoding import json_decoder


class RestoringStatus(msgspec.Struct, frozen=True):
    """How far the stores have come."""

    records: int
    """Replayed so far."""
    remaining: int
    """Still to come, as far as that is known."""


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker at one moment."""

    state: str = "starting"
    """starting, joining, restoring, running, waiting for disk, waiting for the log, or ended."""
    handled: int = 0
    """Records handled and committed since the process began."""
    commits: int = 0
    partitions: tuple[str, ...] = ()
    """The input partitions it holds, as `orders-3`."""
    lag: dict[str, int] = {}
    """By input topic: from what it has committed to the end of what is committed there."""
    silent: float = 0.0
    """For how many seconds the log has not answered it; 0 if it does. The lag is not known then."""
    restoring: RestoringStatus | None = None
    error: str = ""
    """What it ends with, if it would end so however often it is started."""


_decode = json_decoder(WorkerReport).decode


def encoded(report: WorkerReport) -> bytes:
    """As it is sent."""
    return msgspec.json.encode(report) + b"\n"


def decoded(line: str) -> WorkerReport | None:
    """What was sent; None if a process ended within the line."""
    try:
        return _decode(line)
    except msgspec.MsgspecError:
        return None
