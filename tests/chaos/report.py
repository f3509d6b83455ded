"""Report of a run of chaos."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """Counts and times of a run."""

    seed: int
    seconds: float = 0.0
    blows: Counter[str] = field(default_factory=Counter)
    takeovers: list[float] = field(default_factory=list)
    """Seconds from the death of the owner, or a broker, to the next answer."""
    records: int = 0
    outputs: int = 0
    windows: int = 0
    """Number of final results of windows."""
    late: int = 0
    """Number of words that came after their windows."""
    deleted: int = 0
    fences: int = 0
    rebalances: int = 0
    restores: list[float] = field(default_factory=list)
    replayed: int = 0
    passes: int = 0
    removed: int = 0
    """Number of records removed by cleaning, tombstones included."""
    tombstones: int = 0
    killed_in_a_pass: int = 0
    killed_in_a_commit: int = 0
    made_anew: int = 0
    """Number of stores rebuilt because tombstones had been removed from their changelogs."""
    pens_repeated: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        takeovers, restores = sorted(self.takeovers), sorted(self.restores)
        return [
            f"seed {self.seed}, {self.seconds:.0f} s: {self.records:,} records in, {self.outputs:,} out",
            f"{self.windows:,} windows closed, {self.late:,} late words",
            f"{self.deleted:,} records deleted while producers ran",
            "  ".join(f"{number} × {blow}" for blow, number in sorted(self.blows.items())),
            f"{self.fences} fences, {self.rebalances} rebalances",
            f"{self.killed_in_a_commit} times killed in a commit",
            f"{self.pens_repeated} transactions of producers aborted and written again",
            f"{len(takeovers)} takeovers: {_spread(takeovers)}",
            f"{len(restores)} restores, {self.replayed:,} records replayed: {_spread(restores)}",
            *(self._cleaner() if self.passes else []),
            f"lost {self.lost}, doubled {self.doubled}",
            *(f"WRONG {what}" for what in self.wrong),
        ]

    def _cleaner(self) -> list[str]:
        return [
            f"{self.passes} passes of the cleaner, {self.killed_in_a_pass} times killed in a pass",
            f"{self.removed:,} records removed, {self.tombstones:,} tombstones removed",
            f"{self.made_anew} stores rebuilt for purged tombstones",
        ]


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    at = [seconds[0], seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)], seconds[-1]]
    return "least, median, p95, most: " + ", ".join(f"{value * 1000:,.0f} ms" for value in at)
