"""Assembly of the commands."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.core import TyperGroup

from strandline.framework.cli import logs, output
from strandline.framework.cli.lazy import LazyCommand, LazyGroup
from strandline.framework.cli.reporting import DEBUG, ErrorGuardedGroup, debugging, without_debug

if TYPE_CHECKING:
    from strandline.framework.app import App


class WholeCommand(ErrorGuardedGroup, LazyGroup):
    """The command `strandline`."""

    lazy: Mapping[str, LazyCommand] = {
        "run": LazyCommand(
            *("run", "run"),
            "Run an app until Ctrl-C or until the given limits. It commits before it ends.",
        ),
        "needs": LazyCommand("needs", "needs", "Print the needs of an app as JSON.", hidden=True),
        "serve": LazyCommand(
            *("serve", "serve"),
            "Serve a log until Ctrl-C or SIGTERM. Clients open the printed URL with the token.",
        ),
        "tokens": LazyCommand(
            "tokens", "commands", "Tokens for clients over TCP, with their rights."
        ),
        "topics": LazyCommand(
            "topics", "commands", "List, describe, create, alter and delete topics."
        ),
        "config": LazyCommand(
            *("config", "commands"),
            "Show and change the settings of a log as a whole: defaults for topics, and the cleaner.",
        ),
        "produce": LazyCommand(
            *("produce", "produce"),
            'Append records: JSON lines on stdin, each like {"key": "AA", "value": {"n": 1}}.',
        ),
        "consume": LazyCommand(
            *("consume", "consume"),
            "Print records as JSON lines, in order within each partition, up to the topic's current "
            "end.",
        ),
        "dead-letters": LazyCommand(
            "dead_letters", "commands", "Dead letters: list their topics, put them back."
        ),
        "groups": LazyCommand(
            "groups", "commands", "Consumer groups: committed offsets, lag, members."
        ),
        "sinks": LazyCommand(
            "sinks", "commands", "Sinks of Spark queries, and their last committed batches."
        ),
        "segments": LazyCommand(
            *("segments", "segments"),
            "Show the segments of a topic, one row each; with --frames one row per frame.",
        ),
        "cleaner": LazyCommand(
            *("cleaner", "cleaner"),
            "Show how clean each partition of the compacted topics is, and its last cleaning.",
        ),
        "clean": LazyCommand(
            *("cleaner", "clean"),
            "Compact now, even if little is dirty. Active segments are closed for it.",
        ),
        "stores": LazyCommand("stores", "commands", "The stores of apps: list, get, scan."),
        "reset": LazyCommand(
            *("reset", "reset"),
            "Reset an app: delete offsets, state and changelogs, or only those that are chosen.",
        ),
        "describe": LazyCommand(
            *("describe", "describe"),
            "Show an app's tasks, streams, topics and stores, or the apps and topics of a log.",
        ),
        "plan": LazyCommand(
            *("plan", "plan"),
            "Compare the state and the topics that an app declares with what its log has.",
        ),
        "move": LazyCommand(
            *("move", "move"),
            "Move topics and the offsets of their groups to another log, so that apps can continue "
            "there.",
        ),
        "offload": LazyCommand(
            *("offload", "offload"),
            "Load a topic into Parquet files, Delta Lake or Iceberg, each record once.",
        ),
        "backup": LazyCommand(
            *("backup", "backup"),
            "Back up a log, in use or not, as it is at one moment. Only data that TO lacks is copied.",
        ),
        "restore": LazyCommand("backup", "restore", "Make a new log from a backup."),
        "backups": LazyCommand("backup", "commands", "The backups in a folder: list, prune."),
        "check": LazyCommand(
            *("check", "check"),
            "Read a whole log that no process has open, and its stores, and report what is wrong.",
        ),
        "repair": LazyCommand(
            *("repair", "repair"),
            "Repair what `check` finds in a log that no process has open, and report what is lost.",
        ),
    }


def strandline() -> typer.Typer:
    """Return the whole command."""
    application = _typer("Look at a Strandline log, and run apps on it.", WholeCommand)
    application.callback()(_options)
    return application


def strandline_of(app: App) -> typer.Typer:
    """Return the commands of one app."""
    from strandline.framework.cli import describe, plan, reset, run

    application = _typer(f"The app {app.name!r}.")
    application.callback()(_options)
    application.command("run")(run.command_of(app))
    application.command("describe")(describe.command_of(app))
    application.command("plan")(plan.command_of(app))
    application.command("reset")(reset.command_of(app))
    return application


def invoke(
    application: typer.Typer, arguments: Sequence[str] | None, *, name: str | None
) -> NoReturn:
    """Run a command line and exit."""
    if sys.stdout is None or sys.stderr is None:  # closed by the caller (`>&-`)
        with open(os.devnull, "w") as nowhere:
            sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
            invoke(application, arguments, name=name)
    given, debug = without_debug(sys.argv[1:] if arguments is None else arguments)
    given, form = logs.without_format(given)
    with debugging(debug), logs.reporting_as(form), ended_by_sigterm():
        application(given, prog_name=name)
    raise SystemExit(0)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the first process of a container, for which its default action is nothing.

    What a command does in order at a SIGTERM, such as to stop its workers, comes before that.
    """
    is_lost = os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_lost or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _typer(purpose: str, group: type[TyperGroup] = ErrorGuardedGroup) -> typer.Typer:
    return typer.Typer(
        cls=group,
        help=purpose,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _print_version(asked: bool) -> None:
    if asked:
        try:
            output.line(f"strandline {metadata.version('strandline')}")
        except metadata.PackageNotFoundError:
            output.line("strandline, from source")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show tracebacks; accepted anywhere on the command line.")
    ] = False,
    log_format: Annotated[
        str | None,
        typer.Option(
            logs.OPTION,
            metavar="text|json",
            help=f"json: one JSON object per line on stderr; accepted anywhere. Also {logs.VARIABLE}.",
        ),
    ] = None,
) -> None:
    del version, debug, log_format  # all are handled before typer sees the command line
