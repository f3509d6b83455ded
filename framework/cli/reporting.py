"""Errors, closed pipes and Ctrl-C of the command line.

Exit codes: 0 success; 1 an error of Strandline's, reported in one line; 2 a wrong command line;
130 Ctrl-C. (`check` and `repair` have codes of their own: docs/reliability.md.) A reader that goes
away (`| head`) ends a command quietly. Other errors, such as one in the user's module, have a
traceback that begins in the user's code. With `--debug`, anywhere on the command line, every error
has a whole one. With `--log-format json`, errors and everything else on stderr are JSON.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

import strandline
from strandline.changelog.errors import StorageFailed, StrandlineError
from strandline.changelog.printable import printable
from strandline.framework.cli import logs, output

FAILED, INTERRUPTED = 1, 130
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing the output. Errors of a log's files are translated where they occur."""
_NOT_USERS = (
    str(Path(strandline.__file__).parent),
    *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")),
    "<",
)
"""Beginnings of the names of files that are not the user's; generated code has names as `<string>`."""
DEBUG = "--debug"


class ErrorGuardedGroup(TyperGroup):
    """Group of commands that reports Strandline's errors in one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        with reporting_errors():
            return super().invoke(ctx)


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
    """Report Strandline's errors in one line and exit with `code`; be quiet if a pipe is closed.

    An error of writing the output, such as a full disk, is reported in the same way.
    """
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
        _drop_output()
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        users = None if _debug or logs.are_json() else _users_part(error.__traceback__)
        if isinstance(error, OSError) and error.filename is None and error.errno in _NOT_WRITTEN:
            report_error(StorageFailed(f"cannot write the output: {error.strerror}"))
            _drop_output()
        elif users is None:
            raise
        else:
            shown = traceback.format_exception(error.with_traceback(users))
            sys.stderr.write(printable("".join(shown)))
        raise typer.Exit(code) from None


def _users_part(whole: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the user's code; None if there is none."""
    while whole is not None and whole.tb_frame.f_code.co_filename.startswith(_NOT_USERS):
        whole = whole.tb_next
    return whole


def _drop_output() -> None:
    # The interpreter flushes stdout again when it exits, which would fail once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
def debugging(on: bool) -> Iterator[None]:
    global _debug  # noqa: PLW0603 - a process has one command line
    before, _debug = _debug, on
    try:
        yield
    finally:
        _debug = before
