"""Log messages as JSON, for programs that read them."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

ALWAYS = frozenset({"time", "level", "logger", "pid", "message"})
"""Fields that every message has."""


class JsonFormatter(logging.Formatter):
    """Formatter of log messages as JSON, one object per line.

    The fields are `time`, `level`, `logger`, `pid`, `message`, and those of the call's `extra`. The
    time is UTC, in ISO 8601 with milliseconds. An exception adds `error`, its type, and
    `traceback`. Use it for a handler of your own; Strandline's commands set one up with
    `--log-format json`.

    >>> record = logging.makeLogRecord({"name": "shop", "msg": "sold %s", "args": (3,), "till": 7})
    >>> json.loads(JsonFormatter().format(record))["message"]
    'sold 3'
    >>> json.loads(JsonFormatter().format(record))["till"]
    7
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the message as one line of JSON, without the line end.

        Args:
            record: The log record. Attributes that `extra` added to it become fields.
        """
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        fields: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        given = vars(record).items()
        fields |= {name: value for name, value in given if name not in _KNOWN}
        if record.exc_info and record.exc_info[1] is not None:
            fields.setdefault("error", record.exc_info[1])
            fields["traceback"] = self.formatException(record.exc_info)
        return _encoded(fields)


def _encoded(fields: dict[str, Any]) -> str:
    try:
        return json.dumps(fields, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # keys of other types, NaN, cyclic objects
        return json.dumps({name: str(value) for name, value in fields.items()})


def _plain(value: object) -> str:
    return type(value).__name__ if isinstance(value, BaseException) else str(value)


_KNOWN = frozenset({*vars(logging.makeLogRecord({})), *ALWAYS, "asctime", "taskName"})
"""Attributes that every log record has, or that the formatter writes under another name."""
