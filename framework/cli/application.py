"""Assembly of the commands, and the treatment of errors, closed pipes and Ctrl-C.

Exit codes: 0 success; 1 an error of Strandline's, reported in one line; 2 a wrong command line;
130 Ctrl-C. (`check` and `repair` have codes of their own: docs/reliability.md.) A reader that goes
away (`| head`) ends a command quietly. With `--debug`, anywhere on the command line, errors have a
traceback. With `--log-format json`, errors and everything else on stderr are JSON.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from strandline.changelog.errors import StrandlineError
from strandline.framework.cli import logs, output
from strandline.framework.cli.lazy import LazyCommand, LazyGroup
from strandline.framework.terminal import printable

if TYPE_CHECKING:
    from strandline.framework.app import App

FAILED, INTERRUPTED = 1, 130
DEBUG = "--debug"


class ErrorGuardedGroup(TyperGroup):
    """Group of commands that reports Strandline's errors in one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        with reporting_errors():
            return super().invoke(ctx)


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
        "groups": LazyCommand(
            "groups", "commands", "Consumer groups: committed offsets, lag, members."
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
            "Show an app's tasks, topics and stores, or the apps and topics of a log.",
        ),
        "move": LazyCommand(
            *("move", "move"),
            "Move topics and the offsets of their groups to another log, so that apps can continue "
            "there.",
        ),
        "backup": LazyCommand(
            *("backup", "backup"),
            "Back up a log, in use or not, as it is at one moment. Only data that TO lacks is copied.",
        ),
        "restore": LazyCommand("backup", "restore", "Make a new log from a backup."),
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
    from strandline.framework.cli import describe, reset, run

    application = _typer(f"The app {app.name!r}.")
    application.callback()(_options)
    application.command("run")(run.command_of(app))
    application.command("describe")(describe.command_of(app))
    application.command("reset")(reset.command_of(app))
    return application


def invoke(
    application: typer.Typer, arguments: Sequence[str] | None, *, name: str | None
) -> NoReturn:
    """Run a command line and exit."""
    given, debug = without_debug(sys.argv[1:] if arguments is None else arguments)
    given, form = logs.without_format(given)
    with _debugging(debug), logs.reporting_as(form):
        application(given, prog_name=name)
    raise SystemExit(0)


def without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return the command line without `--debug`, and True if it was there.

    >>> without_debug(["topics", "list", "--debug"])
    (['topics', 'list'], True)
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head = [argument for argument in arguments[:end] if argument != DEBUG]
    return [*head, *arguments[end:]], len(head) < end


@contextlib.contextmanager
def reporting_errors(code: int = FAILED) -> Iterator[None]:
    """Report Strandline's errors in one line and exit with `code`; be quiet if a pipe is closed."""
    try:
        yield
        sys.stdout.flush()
    except StrandlineError as error:
        if _debug and not logs.are_json():
            sys.stderr.write(printable(traceback.format_exc()))
        else:
            report_error(error)
        raise typer.Exit(code) from None
    except BrokenPipeError:
        # The interpreter flushes stdout again when it exits, which would fail on the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def report_error(error: StrandlineError) -> None:
    """Print an error on stderr, on one line."""
    message = " ".join(str(error).split()) or type(error).__name__
    if logs.are_json():
        logs.fail(error, message, traceback=_debug)
        return
    text = Text(printable(message))
    hint = f" ({DEBUG} shows the traceback)" if error.__cause__ is not None else ""
    output.console(stderr=True).print(
        Text.assemble((f"{type(error).__name__}: ", "bold red"), text, (hint, "dim")),
        soft_wrap=True,
    )


_debug = False


def debug_option() -> list[str]:
    """Return `--debug` if it was given, for a process that is started for the same purpose."""
    return [DEBUG] if _debug else []


@contextlib.contextmanager
def _debugging(on: bool) -> Iterator[None]:
    global _debug  # noqa: PLW0603 - a process has one command line
    before, _debug = _debug, on
    try:
        yield
    finally:
        _debug = before


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
