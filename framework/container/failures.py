"""Messages for a handler that raised, and the headers of a dead-letter record."""

from __future__ import annotations

import os
import traceback
from typing import Any

from strandline.changelog.errors import TaskFailed
from strandline.changelog.printable import shortened
from strandline.changelog.records import Headers
from strandline.framework.dead_letter_names import (
    ERROR_LEFT_OUT,
    ERROR_MESSAGE,
    ERROR_TRACEBACK,
    ERROR_TYPE,
    ORIGIN,
    origin_headers,
)
from strandline.framework.record import Record

EXCERPT_CHARS = 2_000
"""Maximum number of characters of the message, and of the traceback, in a dead-letter record."""
SHORT_EXCERPT_CHARS = 200
"""Maximum number of characters of the message after the log refused a longer dead letter."""
SHORTENED, WITHOUT_VALUE = 1, 2
"""Levels of a dead letter: 1 omits the traceback, 2 also the value and the record's own headers."""


def task_failed(task: str, what: str, error: Exception, where: str) -> TaskFailed:
    """Return the error that `run()` raises for a task that has stopped.

    `where` is the place of the handler, used if the traceback has no frame of user code.
    """
    place = place_raised(error) or where
    return TaskFailed(
        f"task {task!r} failed on {what}: {type(error).__name__}: {error} (at {place});"
        " its changes were undone, and it is handled again at the next run. Fix the handler or the"
        ' record, or let the task go on with on_error="skip" or "dead_letter"'
    )


def described(record: Record[Any, Any]) -> str:
    """Return topic, partition, offset and key of a record as text for messages."""
    return f"record {record.position} with key {record.key!r}"


def dead_letter_headers(
    record: Record[Any, Any], topic_id: str, error: Exception, level: int = 0
) -> Headers:
    """Return the headers of a dead letter: the record's own, then its origin and its error.

    Args:
        record: The record, or the one that stands for a timer or window.
        topic_id: Id of the record's topic; "" for a record that is in no topic.
        error: The error raised by the handler, or the log's reason for refusing the commit.
        level: 0 at first; raised by 1 each time the log refuses the dead letter.
    """
    longest = EXCERPT_CHARS if level < SHORTENED else SHORT_EXCERPT_CHARS
    causes = {
        ERROR_TYPE: type(error).__name__,
        ERROR_MESSAGE: shortened(str(error), longest),
        ERROR_TRACEBACK: "".join(traceback.format_exception(error))[-EXCERPT_CHARS:],
        **origin_headers(ORIGIN, record.topic, topic_id, record.partition, record.offset),
    }
    if level >= SHORTENED:
        del causes[ERROR_TRACEBACK]
        causes[ERROR_LEFT_OUT] = (
            "traceback" if level < WITHOUT_VALUE else "traceback, value, headers"
        )
    added = [(name, text.encode(errors="replace")) for name, text in causes.items()]
    return (*(record.headers if level < WITHOUT_VALUE else ()), *added)


def place_raised(error: BaseException) -> str | None:
    """Return file and line of the innermost frame outside the package; None if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not _is_own_code(frame.filename)]
    return f"{users[-1].filename}:{users[-1].lineno}" if users else None


_PACKAGE_FOLDER = (
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
)
"""Path of the folder of the package `strandline`, with a trailing separator."""


def _is_own_code(filename: str) -> bool:
    return os.path.abspath(filename).startswith(_PACKAGE_FOLDER)
