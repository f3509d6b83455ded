"""`strandline repair DIR`: repair what `check` finds, and report what is lost.

Exit codes: 0 only notes remain, which opening the log corrects, or nothing; otherwise those of
`check` for what remains. If the user does not agree, nothing is changed, and the code is that of
`check` as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.repairing.folder import plan_of
from strandline.changelog.embedded.repairing.plan import RepairPlan, carry_out
from strandline.framework.cli import output
from strandline.framework.cli.check import UNCHECKED, as_json, checked, code, summary
from strandline.framework.cli.offline import FolderArgument, held
from strandline.framework.cli.options import JsonOption, YesOption, confirmed
from strandline.statestore.checking.repairing import add_stores


def repair(folder: FolderArgument, yes: YesOption = False, json: JsonOption = False) -> None:
    """Repair what `check` finds in a log that no process has open, and report what is lost.

    Shows the plan and asks before it changes anything. Every file that it changes or removes is
    first copied to DIR/repaired/<time>/.
    """
    from strandline.framework.cli.reporting import reporting_errors

    with reporting_errors(UNCHECKED), held(folder) as storage:
        log, stores = checked(storage, Path(folder))
        plan = plan_of(log, storage, SystemClock(), stores.reaches)
        add_stores(plan, stores)
        report = log.report
        if not json:
            _show(plan, report)
        agreed = bool(plan.steps) and confirmed("Do it?", yes=yes)
        kept = None
        if agreed:
            kept = carry_out(plan, storage, SystemClock())
            report = checked(storage, Path(folder))[0].report
        if json:
            output.document(_as_json(plan, report, kept))
        else:
            _show_outcome(plan, report, kept)
    raise typer.Exit(0 if report.worst is Severity.NOTE else code(report))


def _show(plan: RepairPlan, report: CheckReport) -> None:
    output.line(f"found: {summary(report)}")
    _list("it would", [step.what for step in plan.steps])
    _list("lost for good:", plan.losses)
    _list("left unchanged, because the right contents are not known:", plan.left)


def _list(title: str, lines: list[str]) -> None:
    if lines:
        output.line(title)
        for text in lines:
            output.line(f"    {text}")


def _show_outcome(plan: RepairPlan, report: CheckReport, kept: str | None) -> None:
    if kept is not None:
        output.line(f"done; what was there before is in {kept}; now: {summary(report)}")
    elif plan.steps:
        output.note("nothing was changed; --yes does it")
    else:
        output.line("there is nothing to repair")


def _as_json(plan: RepairPlan, report: CheckReport, kept: str | None) -> dict[str, Any]:
    return {
        "done": kept is not None,
        "kept": kept,
        "steps": [step.what for step in plan.steps],
        "losses": plan.losses,
        "left": plan.left,
        "check": as_json(report),
    }
