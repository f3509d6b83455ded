"""Log messages as JSON, for programs that read them."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

ALWAYS = frozenset({"time", "level", "logger", "pid", "message"})
"""The fields of every message."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `pid`, `message`, and what the call gave as `extra`.

    The time is UTC, in ISO 8601 with milliseconds. Of an exception there is `error`, its type, and
    `traceback`. For a handler of your own; Strandline's commands set one up (`--log-format json`).

    >>> record = logging.makeLogRecord({"name": "shop", "msg": "sold %s", "args": (3,), "till": 7})
    >>> json.loads(JsonFormatter().format(record))["message"]
    'sold 3'
    >>> json.loads(JsonFormatter().format(record))["till"]
    7
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        told: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        given = vars(record).items()
        told |= {name: value for name, value in given if name not in _KNOWN}
        if record.exc_info and record.exc_info[1] is not None:
            told.setdefault("error", record.exc_info[1])
            told["traceback"] = self.formatException(record.exc_info)
        return _encoded(told)


def _encoded(told: dict[str, Any]) -> str:
    try:
        return json.dumps(told, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # keys of other types, NaN, what holds itself
        return json.dumps({name: str(value) for name, value in told.items()})


def _plain(value: object) -> str:
    return type(value).__name__ if isinstance(value, BaseException) else str(value)


_KNOWN = frozenset({*vars(logging.makeLogRecord({})), *ALWAYS, "asctime", "taskName"})
"""What every record has, and what is told of it in another way."""
