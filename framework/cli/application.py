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
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from strandline.changelog.errors import StrandlineError
from strandline.framework.cli import (
    backup,
    check,
    cleaner,
    config,
    consume,
    describe,
    groups,
    logs,
    move,
    needs,
    output,
    produce,
    repair,
    reset,
    run,
    segments,
    serve,
    stores,
    tokens,
    topics,
)
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


def strandline() -> typer.Typer:
    """Return the whole command."""
    application = _typer("Look at a Strandline log, and run apps on it.")
    application.callback()(_options)
    application.command("run")(run.run)
    application.command("needs", hidden=True)(needs.needs)
    application.command("serve")(serve.serve)
    application.add_typer(tokens.commands, name="tokens")
    application.add_typer(topics.commands, name="topics")
    application.add_typer(config.commands, name="config")
    application.command("produce")(produce.produce)
    application.command("consume")(consume.consume)
    application.add_typer(groups.commands, name="groups")
    application.command("segments")(segments.segments)
    application.command("cleaner")(cleaner.cleaner)
    application.command("clean")(cleaner.clean)
    application.add_typer(stores.commands, name="stores")
    application.command("reset")(reset.reset)
    application.command("describe")(describe.describe)
    application.command("move")(move.move)
    application.command("backup")(backup.backup)
    application.command("restore")(backup.restore)
    application.command("check")(check.check)
    application.command("repair")(repair.repair)
    return application


def strandline_of(app: App) -> typer.Typer:
    """Return the commands of one app."""
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


def _typer(purpose: str) -> typer.Typer:
    return typer.Typer(
        cls=ErrorGuardedGroup,
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
