"""The command `strandline`, and the same for one app: `app.main()`.

    application.py   the commands put together; what happens to errors, pipes and Ctrl-C
    options.py       the options that many commands share
    loading.py       module:app, and the log that an option means
    output.py        tables for people, JSON for machines, notes on stderr
    forms.py         keys and values between bytes and JSON
    reading.py       records of a topic up to its end, or as they come
    offline.py       a log folder that nobody else has open
    needs.py         what an app needs, found out without importing it
    workers.py       `run --workers`

and a module for each command or group of commands. typer and rich are imported here only, and
only when a command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from strandline.framework.app import App


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command `strandline` with `arguments` (None: those of the process), and exit.

    The exit code is 0, 1 for an error of Strandline's, or 2 for a wrong command line.
    """
    from strandline.framework.cli.application import invoke, strandline

    invoke(strandline(), arguments, name="strandline")


def app_main(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the commands that make sense for one app: run, describe, reset. What `app.main()` calls."""
    from strandline.framework.cli.application import invoke, strandline_of

    invoke(strandline_of(app), arguments, name=None)
