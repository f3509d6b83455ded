"""`--log-format`: messages of a command on stderr, as text for people or as JSON for programs.

As text, they are formatted as Python does by default: log messages from warnings on, and the
command's notes. As JSON, all of stderr is one object per line: log messages from `info` on, notes
and errors.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

from strandline.changelog.printable import printable
from strandline.framework.logs import ALWAYS, JsonFormatter

OPTION, VARIABLE = "--log-format", "STRANDLINE_LOG_FORMAT"

Format = Literal["text", "json"]

_log = logging.getLogger("strandline.cli")
_OURS = logging.getLogger("strandline")
_BROKERS = logging.getLogger("strandline.kafka")
_active = False


def are_json() -> bool:
    """Return True if messages are written as JSON."""
    return _active


@contextmanager
def reporting_as(asked: str | None) -> Iterator[None]:
    """Write messages in the given format, else the environment's, while the block runs.

    Processes that are started meanwhile do the same. Exits with code 2 if there is no such format.
    """
    form = asked if asked is not None else os.environ.get(VARIABLE) or "text"
    if form not in get_args(Format):
        where = OPTION if asked is not None else VARIABLE
        sys.stderr.write(f"{where} is one of {', '.join(get_args(Format))}; got {form!a}\n")
        raise SystemExit(2)
    with _environment(form), _json() if form == "json" else _text():
        yield


@contextmanager
def only_errors() -> Iterator[None]:
    """Hide warnings about brokers while the block runs, because an error describes the problem."""
    before = _BROKERS.level
    _BROKERS.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _BROKERS.setLevel(before)


def without_format(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the command line without `--log-format`, and the option's value.

    >>> without_format(["run", "shop:app", "--log-format", "json"])
    (['run', 'shop:app'], 'json')
    >>> without_format(["--log-format=json", "topics", "--", "--log-format"])
    (['topics', '--', '--log-format'], 'json')
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head, found = list[str](), None
    given = iter(arguments[:end])
    for argument in given:
        name, equals, value = argument.partition("=")
        if name != OPTION:
            head.append(argument)
        else:
            found = value if equals else next(given, "")
    return [*head, *arguments[end:]], found


def say(text: str, **fields: object) -> None:
    """Log a message of the command itself."""
    _log.info("%s", text, extra=fields)


def fail(error: BaseException, text: str, *, traceback: bool) -> None:
    """Log the error that ends the command."""
    _log.error("%s", text, extra={"error": error}, exc_info=error if traceback else None)


def forward_worker_lines(lines: Sequence[str]) -> None:
    """Write lines of workers and their supervisor; a worker's line begins with `[number]`."""
    for line in lines:
        found = _WORKERS_LINE.fullmatch(line)
        if found is None:
            say(line)
        elif _is_message(found[2]):
            sys.stderr.write(f"{printable(found[2])}\n")
        else:
            say(found[2], worker=int(found[1]))
    sys.stderr.flush()


@contextmanager
def _text() -> Iterator[None]:
    """Make Python's default log output safe for a terminal."""
    handler = logging.lastResort
    if handler is None:
        yield
        return
    before = handler.formatter
    handler.setFormatter(_PrintableFormatter())
    try:
        yield
    finally:
        handler.setFormatter(before)


class _PrintableFormatter(logging.Formatter):
    """Log formatter for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, with its traceback if it has one, in printable characters."""
        return printable(super().format(record))


@contextmanager
def _json() -> Iterator[None]:
    global _active  # noqa: PLW0603 - a process has one command line
    handler, root = _Stderr(), logging.getLogger()
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    before, level, _active = _active, _OURS.level, True
    _OURS.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    try:
        yield
    except Exception:
        _log.critical("the command failed in an unexpected way", exc_info=True)
        raise SystemExit(1) from None
    finally:
        logging.captureWarnings(capture=False)
        _OURS.setLevel(level)
        root.removeHandler(handler)
        _active = before


@contextmanager
def _environment(form: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = form
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


class _Stderr(logging.StreamHandler[Any]):
    """Handler that writes to the current stderr: each supervised worker has its own."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def _is_message(line: str) -> bool:
    """Return True if a line is a log message already; a handler's print may be other JSON."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and message.keys() >= ALWAYS


_WORKERS_LINE = re.compile(r"\[(\d+)\] (.*)", re.DOTALL)
