"""`strandline check DIR`: read the whole log and its stores, and report what is wrong.

Exit codes: 0 nothing found; 1 only notes and repairable findings; 2 damage; 3 the log could not be
checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from strandline.changelog.embedded.checking.findings import CheckReport, Finding, Severity
from strandline.changelog.embedded.checking.folder import CheckedLog, check_log
from strandline.changelog.local_storage import LocalStorage
from strandline.framework.cli import output
from strandline.framework.cli.offline import FolderArgument, ReadingBar, held
from strandline.framework.cli.options import JsonOption
from strandline.statestore.checking.stores import CheckedStores, check_stores

UNCHECKED = 3
"""Exit code if the log could not be checked."""


def check(folder: FolderArgument, json: JsonOption = False) -> None:
    """Read a whole log that no process has open, and its stores, and report what is wrong.

    It changes nothing. Exit code 0: nothing found; 1: only findings that opening the log or
    `repair` corrects; 2: damage; 3: not checked.
    """
    from strandline.framework.cli.reporting import reporting_errors

    with reporting_errors(UNCHECKED), held(folder) as storage:
        report = checked(storage, Path(folder))[0].report
        if json:
            output.document(as_json(report))
        else:
            show(report)
    raise typer.Exit(code(report))


def checked(storage: LocalStorage, folder: Path) -> tuple[CheckedLog, CheckedStores]:
    """Check the log and the stores, with a bar if it takes a while."""
    with ReadingBar("checking") as bar:
        log = check_log(storage, on_progress=bar)
    return log, check_stores(folder, log)


def code(report: CheckReport) -> int:
    """Return the exit code for a report."""
    worst = report.worst
    return 0 if worst is None else 2 if worst is Severity.DAMAGE else 1


def show(report: CheckReport) -> None:
    """Print the findings, the worst first, and how much was read."""
    for severity in sorted(Severity, reverse=True):
        for finding in report.of(severity):
            _show_finding(finding)
    if report.left_out:
        output.line(
            f"… and {output.number(report.left_out)} more of the same kinds in the same files"
        )
    end = "closed in order" if report.closed_in_order else "not closed in order"
    n = output.number
    output.line(
        f"{n(report.topics)} topics, {n(report.partitions)} partitions, "
        f"{n(report.segments)} segments, {n(report.frames)} frames, {n(report.records)} records, "
        f"{output.size(report.bytes)}; {n(report.stores)} store partitions; {end}"
    )
    output.line(summary(report))


def summary(report: CheckReport) -> str:
    """Return the number of findings of each severity as text.

    >>> summary(CheckReport())
    'nothing is wrong'
    """
    counts = [(severity, len(report.of(severity))) for severity in sorted(Severity, reverse=True)]
    words = [
        f"{output.number(count)} {severity.name.lower()}" for severity, count in counts if count
    ]
    return ", ".join(words) or "nothing is wrong"


def as_json(report: CheckReport) -> dict[str, Any]:
    """Return the report as one document."""
    figures = ("topics", "partitions", "segments", "frames", "records", "bytes", "stores")
    return {
        "worst": None if report.worst is None else report.worst.name.lower(),
        "closed_in_order": report.closed_in_order,
        "findings": [_finding_json(finding) for finding in report.findings],
        "left_out": report.left_out,
        **{name: getattr(report, name) for name in figures},
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    partition = finding.partition
    return {
        "severity": finding.severity.name.lower(),
        "kind": finding.kind,
        "file": finding.file,
        "what": finding.what,
        "way_out": finding.way_out,
        "topic": partition.topic if partition is not None else None,
        "partition": partition.partition if partition is not None else None,
        "offsets": finding.offsets,
    }


def _show_finding(finding: Finding) -> None:
    where = f"{finding.partition}: " if finding.partition is not None else ""
    output.line(f"{finding.severity.name}  {where}{finding.file or 'the log'}")
    output.line(f"    {finding.what}")
    output.line(f"    → {finding.way_out}")
