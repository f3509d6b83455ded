"""Command line: `strandline`, and `app.main()` for one app.

    application.py   assembly of the commands
    reporting.py     errors, closed pipes and Ctrl-C
    lazy.py          group of commands that are imported when they run
    options.py       options that many commands share
    loading.py       the app of module:app, and the log of --log
    output.py        tables for people, JSON for machines, notes on stderr
    json_values.py   values as JSON, and back
    forms.py         conversion of keys and values between bytes and JSON
    reading.py       records of a topic up to its end, or as they arrive
    offline.py       a log folder that no other process has open
    needs.py         needs of an app, found out without importing it here
    workers.py       `run --workers`

There is one more module for each command or group of commands. typer and rich are imported here
only, and only when a command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from strandline.framework.app import App


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command `strandline` and exit.

    Args:
        arguments: Command line without the program's name. None, the default, takes that of the
            process.

    Raises:
        SystemExit: Always. The code is 0, 1 for an error of Strandline's, or 2 for a wrong command
            line.
    """
    from strandline.framework.cli.application import invoke, strandline

    invoke(strandline(), arguments, name="strandline")


def app_main(app: App, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the commands for one app (run, describe, reset) and exit; `app.main()` calls this."""
    from strandline.framework.cli.application import invoke, strandline_of

    invoke(strandline_of(app), arguments, name=None)
