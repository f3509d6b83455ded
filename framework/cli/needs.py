"""Needs of an app, found out in another process, so that this one does not import user code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from strandline.changelog.decoding import json_decoder
from strandline.changelog.flight.background import environment
from strandline.framework.cli import output
from strandline.framework.cli.loading import load_app
from strandline.framework.supervisor.process import COMMAND, ending


class AppNeeds(msgspec.Struct):
    """Name, log and durability of an app."""

    app: str
    log: str | None
    """A folder or URL; None if the module opens its log itself."""
    durability: Literal["fsync", "os"]
    has_state_dir: bool = False
    """True if the app names the folder of its state."""


_decode = json_decoder(AppNeeds).decode


def ask(target: str, options: Sequence[str] = ()) -> AppNeeds:
    """Return the needs of the app `target`, as reported by a process that imports it.

    If that process fails it has printed why. This function then exits with its exit code.
    """
    asked = [*COMMAND, "needs", target, *options]
    done = subprocess.run(
        asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(), check=False
    )
    if done.returncode < 0:
        output.note(f"the process that was to import {target} {ending(done.returncode, '')}")
    if done.returncode:
        raise typer.Exit(max(done.returncode, 1))
    return _decode(done.stdout)


def needs(target: Annotated[str, typer.Argument(metavar="MODULE:APP")]) -> None:
    """Print the needs of an app as JSON."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the module must not mix with the answer
    app = load_app(target)
    app.declared.check_tasks()
    log = str(app.log) if isinstance(app.log, str | Path) else None
    with answer:
        found = AppNeeds(
            *(app.name, log, app.session.durability), app.session.state_dir is not None
        )
        answer.write(msgspec.json.encode(found))
