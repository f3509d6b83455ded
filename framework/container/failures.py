"""A handler that raised: what is said about it, and what a dead-letter record carries."""

from __future__ import annotations

import os
import traceback
from typing import Any

from strandline.changelog.errors import (
    CorruptLog,
    Fenced,
    NotAuthorized,
    StorageFailed,
    TaskFailed,
    TransactionAborted,
    Unauthenticated,
)
from strandline.changelog.records import Headers
from strandline.framework.record import Record

NOT_THE_RECORD: tuple[type[BaseException], ...] = (
    StorageFailed,
    CorruptLog,
    Fenced,
    TransactionAborted,
    NotAuthorized,
    Unauthenticated,
    MemoryError,
)
"""Errors that say nothing about the record: another one would have met them as well."""

EXCERPT = 2_000
"""Characters of the message, and of the traceback, that go into a dead-letter record."""
SHORT_EXCERPT = 200
"""Characters of the message where the log refused the longer dead letter."""
SHORTENED, WITHOUT_VALUE = 1, 2
"""Levels of a dead letter: without traceback; without value and the record's own headers as well."""


def task_failed(task: str, what: str, error: Exception, where: str) -> TaskFailed:
    """The error that `run()` ends with when a task has stopped."""
    place = place_raised(error) or where
    return TaskFailed(
        f"task {task!r} failed on {what}: {type(error).__name__}: {error} (at {place});"
        " nothing of it was kept, and it comes again at the next run. Fix the handler or the"
        ' record, or let the task go on with on_error="skip" or "dead_letter"'
    )


def described(record: Record[Any, Any]) -> str:
    """Topic, partition, offset and key of a record, for messages."""
    return f"record {record.position} with key {record.key!r}"


def dead_letter_headers(record: Record[Any, Any], error: Exception, level: int = 0) -> Headers:
    """Where a record came from and why it was put aside, after its own headers.

    Args:
        record: The record, or the moment of a timer or window.
        error: What its handler raised, or why the log refused what it had done.
        level: 0, or a higher one for each time that the log refused the dead letter.
    """
    longest = EXCERPT if level < SHORTENED else SHORT_EXCERPT
    causes = {
        "error.type": type(error).__name__,
        "error.message": _excerpt(str(error), longest),
        "error.traceback": "".join(traceback.format_exception(error))[-EXCERPT:],
        "origin.topic": record.topic,
        "origin.partition": str(record.partition),
        "origin.offset": str(record.offset),
    }
    if level >= SHORTENED:
        del causes["error.traceback"]
        causes["error.left_out"] = (
            "traceback" if level < WITHOUT_VALUE else "traceback, value, headers"
        )
    added = [(name, text.encode(errors="replace")) for name, text in causes.items()]
    return (*(record.headers if level < WITHOUT_VALUE else ()), *added)


def _excerpt(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def place_raised(error: BaseException) -> str | None:
    """File and line of the innermost frame that is not Strandline's own."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not _is_ours(frame.filename)]
    return f"{users[-1].filename}:{users[-1].lineno}" if users else None


_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
"""The folder of the package `strandline`."""


def _is_ours(filename: str) -> bool:
    return os.path.abspath(filename).startswith(_OURS)
