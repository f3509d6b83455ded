"""What a check says: findings, each with its severity and its way out, and how much was read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

from strandline.changelog.records import TopicPartition

AT_MOST = 100
"""Findings of one kind in one file; more are counted only."""


class Severity(IntEnum):
    """How bad a finding is, and who puts it right."""

    NOTE = 0
    """A crash leaves such, and opening the log puts it right."""
    REPAIRABLE = 1
    """No crash leaves such; `strandline repair` puts it right and nothing is lost."""
    DAMAGE = 2
    """Something that had been acknowledged cannot be read."""


WAYS_OUT = {
    Severity.NOTE: "opening the log puts it right",
    Severity.REPAIRABLE: "run `strandline repair`; nothing is lost",
    Severity.DAMAGE: "run `strandline repair`, which salvages the rest and names what is lost",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a log folder that is not as it should be."""

    severity: Severity
    kind: str
    """What it is in a word or two, for programs."""
    file: str
    """The file or folder, within the log folder."""
    what: str
    """What is wrong there."""
    way_out: str
    partition: TopicPartition | None = None
    offsets: tuple[int, int] | None = None
    """The first offset that it concerns, and the one behind the last."""


@dataclass(slots=True)
class CheckReport:
    """What a check found, and how much it read."""

    closed_in_order: bool = False
    findings: list[Finding] = field(default_factory=list)
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    stores: int = 0
    left_out: int = 0
    """Findings beyond the first AT_MOST of their kind in their file."""
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter, repr=False)

    @property
    def worst(self) -> Severity | None:
        """The highest severity; None if there is no finding."""
        return max((finding.severity for finding in self.findings), default=None)

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of that severity."""
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
        """Note a finding; its way out is that of its severity if none is given."""
        self._counts[kind, file] += 1
        if self._counts[kind, file] > AT_MOST:
            self.left_out += 1
            return
        way_out = way_out or WAYS_OUT[severity]
        self.findings.append(Finding(severity, kind, file, what, way_out, partition, offsets))
