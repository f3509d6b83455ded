"""The report of a check: findings, each with its severity and a way out, and the amounts read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

from strandline.changelog.records import TopicPartition

MAX_PER_KIND = 100
"""Maximum number of findings of one kind in one file; further ones are only counted."""


class Severity(IntEnum):
    """Severity of a finding, which decides how it is repaired."""

    NOTE = 0
    """Normal after a crash; opening the log repairs it."""
    REPAIRABLE = 1
    """Not caused by a crash; `strandline repair` repairs it without loss."""
    DAMAGE = 2
    """Acknowledged data cannot be read."""


WAYS_OUT = {
    Severity.NOTE: "opening the log repairs it",
    Severity.REPAIRABLE: "run `strandline repair`; nothing is lost",
    Severity.DAMAGE: "run `strandline repair`, which salvages the rest and names what is lost",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a log folder."""

    severity: Severity
    kind: str
    """Kind of problem in one or two words, for programs."""
    file: str
    """Path of the file or folder, relative to the log folder."""
    what: str
    """Description of the problem."""
    way_out: str
    """Action that repairs it."""
    partition: TopicPartition | None = None
    """Partition affected; None if the problem is not in one partition."""
    offsets: tuple[int, int] | None = None
    """First offset affected and end (exclusive); None if no offsets are affected."""


@dataclass(slots=True)
class CheckReport:
    """Findings of a check, and the amounts read."""

    closed_in_order: bool = False
    """True if the log was closed cleanly."""
    findings: list[Finding] = field(default_factory=list)
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    stores: int = 0
    left_out: int = 0
    """Number of findings beyond the first MAX_PER_KIND of their kind in their file."""
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter, repr=False)

    @property
    def worst(self) -> Severity | None:
        """Highest severity; None if there is no finding."""
        return max((finding.severity for finding in self.findings), default=None)

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]

    def add(
        self,
        severity: Severity,
        kind: str,
        file: str,
        what: str,
        *,
        way_out: str = "",
        partition: TopicPartition | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        """Add a finding; without `way_out` it gets the default of its severity."""
        self._counts[kind, file] += 1
        if self._counts[kind, file] > MAX_PER_KIND:
            self.left_out += 1
            return
        way_out = way_out or WAYS_OUT[severity]
        self.findings.append(Finding(severity, kind, file, what, way_out, partition, offsets))
