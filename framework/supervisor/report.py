"""Status report of a worker, sent to the supervisor as a line of JSON."""

from __future__ import annotations

import msgspec

from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import UNREADABLE


class RestoringStatus(msgspec.Struct, frozen=True):
    """Progress of restoring the stores."""

    records: int
    """Number of records replayed."""
    remaining: int
    """Number of records still to be replayed, as far as known."""


class WorkerReport(msgspec.Struct, frozen=True):
    """Status of a worker at one moment."""

    state: str = "starting"
    """starting, joining, restoring, running, waiting for disk, waiting for the log, or ended."""
    handled: int = 0
    """Number of records handled and committed since the process began."""
    commits: int = 0
    """Number of commits since the process began."""
    partitions: tuple[str, ...] = ()
    """Owned input partitions, such as `orders-3`."""
    lag: dict[str, int] = {}
    """Offsets from the worker's commits to the last stable offset, by input topic."""
    silent: float = 0.0
    """Seconds for which the log has not answered; 0 if it answers. Otherwise the lag is unknown."""
    restoring: RestoringStatus | None = None
    """Progress of a restore; None if the worker is not restoring."""
    error: str = ""
    """Error with which the worker ends and that a restart does not fix; "" if there is none."""


_decode = json_decoder(WorkerReport).decode


def encoded(report: WorkerReport) -> bytes:
    """Return a report as a line of JSON."""
    return msgspec.json.encode(report) + b"\n"


def decoded(line: str) -> WorkerReport | None:
    """Return the report in a line; None if the line is incomplete because the process ended."""
    try:
        return _decode(line)
    except UNREADABLE:
        return None
