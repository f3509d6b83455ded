"""`strandline backup LOG TO` and `strandline restore BACKUPS TO`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from strandline.changelog.backups import backup as make
from strandline.changelog.backups import restore as make_log
from strandline.framework.cli import output
from strandline.framework.cli.loading import local
from strandline.framework.cli.offline import FolderArgument, ReadingBar
from strandline.framework.cli.options import JsonOption


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
    backups: Annotated[str, typer.Argument(metavar="BACKUPS", help="Folder of the backups.")],
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


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
