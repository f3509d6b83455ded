"""`strandline backup LOG TO`, `restore BACKUPS TO` and `backups`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from strandline.changelog.backups import backup as make
from strandline.changelog.backups import prune, stored_backups
from strandline.changelog.backups import restore as make_log
from strandline.framework.cli import output
from strandline.framework.cli.loading import local
from strandline.framework.cli.offline import FolderArgument, ReadingBar
from strandline.framework.cli.options import JsonOption

commands = typer.Typer(help="The backups in a folder: list, prune.", no_args_is_help=True)

BackupsArgument = Annotated[str, typer.Argument(metavar="BACKUPS", help="Folder of the backups.")]


def backup(
    folder: FolderArgument,
    to: Annotated[
        str, typer.Argument(metavar="TO", help="Folder of the backups; created if necessary.")
    ],
    json: JsonOption = False,
) -> None:
    """Back up a log, in use or not, as it is at one moment. Only data that TO lacks is copied.

    State folders and pins are not included: stores are restored from their changelogs.
    """
    with ReadingBar("backing up") as bar:
        report = make(local(folder), to, progress=bar)
    if json:
        output.document(asdict(report))
        return
    output.line(
        f"backup {report.name}: log {report.log_id} as of {_moment(report.taken_ms)}; "
        f"{output.number(report.files)} files, {output.size(report.bytes)}, "
        f"{output.size(report.copied_bytes)} of them new"
    )
    if report.repaired_blocks:
        count = output.number(report.repaired_blocks)
        output.line(f"{count} damaged blocks of earlier backups were written again")


def restore(
    backups: BackupsArgument,
    to: Annotated[
        str, typer.Argument(metavar="TO", help="Folder of the new log; must be missing or empty.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the backup; by default the last one."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a new log from a backup.

    It gets its own id, and is checked before it is moved into place.
    """
    with ReadingBar("restoring") as bar:
        report = make_log(backups, local(to), name=name, progress=bar)
    if json:
        output.document(asdict(report))
        return
    output.line(
        f"{to}: log {report.log_id}, a copy of {report.original_log_id} as of "
        f"{_moment(report.taken_ms)} (backup {report.backup}); {output.number(report.files)} files, "
        f"{output.size(report.bytes)}"
    )


@commands.command("list")
def list_backups(backups: BackupsArgument, json: JsonOption = False) -> None:
    """List the backups in a folder, the earliest first."""
    rows = [asdict(one) for one in stored_backups(local(backups))]
    if json:
        output.document(rows)
        return
    shown = [
        {**row, "moment": _moment(row["taken_ms"]), "size": output.size(row["bytes"])}
        for row in rows
    ]
    columns = ("name", "moment", "log_id", "files", "size")
    output.listing(shown, columns, json=False, empty="no backups")


@commands.command("prune")
def prune_backups(
    backups: BackupsArgument,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", help="Number of backups to keep.", min=1)
    ],
    json: JsonOption = False,
) -> None:
    """Remove all but the last N backups, and the data that only they have."""
    report = prune(local(backups), keep=keep)
    if json:
        output.document(asdict(report))
        return
    for name in report.removed:
        output.line(f"removed {name}")
    output.line(
        f"backups: {output.number(len(report.removed))} removed, "
        f"{output.number(len(report.kept))} kept; {output.size(report.freed_bytes)} freed"
    )


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
