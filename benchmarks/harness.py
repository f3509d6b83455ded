"""Shared parts of all workloads: time, folders, and a comparison that survives a noisy machine.

A workload runs ours and the peer in turn, A B A B …, and reports the median of the ratios of
neighbours: a slow phase of the machine slows down both.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

Measured = Callable[[], float]
"""Function that runs once and returns the value to compare: records or bytes per second, or
bytes."""


@dataclass(frozen=True)
class Figure:
    """One comparison of ours with a peer."""

    name: str
    ours: float
    """Median of our values."""
    peer: float
    """Median of the values of the peer or limit."""
    peer_name: str
    unit: str
    ratio: float
    """Median of ours / peer, pair by pair."""
    low: float
    """Smallest ratio of a pair."""
    high: float
    """Largest ratio of a pair."""
    target: float | None = None
    """Value that the ratio should reach; None if the figure is only reported."""
    at_most: bool = False
    """True if the target is an upper bound, as for memory."""

    @property
    def reached(self) -> bool:
        if self.target is None:
            return True
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


def compare(
    name: str,
    ours: Measured,
    peer: Measured,
    *,
    peer_name: str,
    unit: str,
    target: float | None = None,
    at_most: bool = False,
    rounds: int = 5,
    warm_up: bool = True,
) -> Figure:
    """Run `ours` and `peer` in turn, and return the figure."""
    if warm_up:
        ours()
        peer()
    pairs = [(ours(), peer()) for _ in range(rounds)]
    return of_pairs(name, pairs, peer_name=peer_name, unit=unit, target=target, at_most=at_most)


def of_pairs(
    name: str,
    pairs: Sequence[tuple[float, float]],
    *,
    peer_name: str,
    unit: str,
    target: float | None = None,
    at_most: bool = False,
) -> Figure:
    """Return the figure of pairs (ours, peer) that were measured in turn."""
    ratios = [mine / theirs for mine, theirs in pairs]
    return Figure(
        name,
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        peer_name,
        unit,
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        target,
        at_most,
    )


def report(figures: Iterable[Figure], as_json: bool) -> int:
    """Print the machine, and each figure as it comes. Return 1 if a target was missed, else 0."""
    print(f"# {machine()}", file=sys.stderr)
    missed = False
    for figure in figures:
        missed |= not figure.reached
        print(json.dumps(asdict(figure)) if as_json else _line(figure), flush=True)
    return int(missed)


def _line(figure: Figure) -> str:
    verdict = ""
    if figure.target is not None:
        bound = "≤" if figure.at_most else "≥"
        verdict = f"  target {bound} {figure.target:g} {'reached' if figure.reached else 'MISSED'}"
    return (
        f"{figure.name}: {_rate(figure.ours)} {figure.unit}, {figure.ratio:.2f} × "
        f"{figure.peer_name} ({_rate(figure.peer)}; {figure.low:.2f}–{figure.high:.2f}){verdict}"
    )


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


class Stopwatch:
    """Seconds since it was created."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


@contextmanager
def folder() -> Iterator[Path]:
    """Create a folder on a disk (the system's temporary folder may be memory), and remove it
    after."""
    place = Path("/var/tmp") if Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=place) as path:
        yield Path(path)


def pinned(core: int) -> list[str]:
    """Return the command prefix that runs a command and all it starts on one core."""
    return ["taskset", "--cpu-list", str(core)]


def machine() -> str:
    """Return date and machine, for the record."""
    cores = _cores()
    memory = _memory_gib()
    today = datetime.now(UTC).date().isoformat()
    system = f"{platform.system()} {platform.machine()}"
    return f"{today}, {cores} cores, {memory} GiB, {system}, Python {platform.python_version()}"


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> int:
    import os

    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
