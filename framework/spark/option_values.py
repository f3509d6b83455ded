"""Values of Spark's options: names that ignore case, flags, numbers, times, paths."""

from __future__ import annotations

import datetime as dt
import difflib
import os
from collections.abc import Mapping, Sequence

from strandline.changelog import location
from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.changelog.secret import masked
from strandline.changelog.times import sought_ms


def known_name(name: str, known: Sequence[str], use: str = "") -> str:
    """Return the option of `known` that is meant. Raise InvalidConfig, with the nearest name.

    >>> known_name("startingoffsets", ["startingOffsets"])
    'startingOffsets'
    """
    by_lower_case = {each.lower(): each for each in known}
    if (found := by_lower_case.get(name.lower())) is not None:
        return found
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    hint = f"did you mean {by_lower_case[near[0]]!r}?" if near else f"there are {', '.join(known)}"
    when = f" {use}" if use else ""
    raise InvalidConfig(f'format("strandline") has no option {name!r}{when}; {hint}')


def log_path(path: str | None, fix: str) -> str:
    """Return the absolute path or the URL of a log. Raise InvalidConfig.

    The path is absolute because workers run in other folders. A URL with secrets is refused, because
    Spark shows options in its event log and its pages.
    """
    if not path:
        raise InvalidConfig(f"the path of the log is missing: {fix}")
    path = path.removeprefix("file:")
    location.check(path)
    if masked(path) != path:
        raise InvalidConfig(
            f"the URL {masked(path)} has secrets in it, and Spark shows options in its event log and "
            "its pages; put them into the environment of driver and executors (STRANDLINE_TOKEN, or "
            f"{location.KAFKA_VARIABLE}), or into a file there (token-file=…)"
        )
    return path if location.is_url(path) else os.path.abspath(path)


def flag_of(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    """Return an option that is 'true' or 'false'. Raise InvalidConfig."""
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} must be 'true' or 'false', got {given[name]!r}")
    return text == "true"


def count_of(name: str, given: Mapping[str, str], least: int = 1) -> int | None:
    """Return an option that is a whole number of at least `least`. Raise InvalidConfig."""
    if name not in given:
        return None
    text = given[name].strip()
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise InvalidConfig(f"{name} must be a whole number above {least - 1}, got {given[name]!r}")
    return int(text)


def time_of(name: str, given: Mapping[str, str], *, after: bool = False) -> int | None:
    """Return an option that is a time, in ms since the epoch; None if it is not given.

    The text is a number of milliseconds, or a time in ISO 8601 (UTC if it has no zone).

    Args:
        name: Name of the option.
        given: All options.
        after: Return the first millisecond after the time.

    Raises:
        InvalidConfig: The text is neither, or the number looks like seconds or another unit.
    """
    if name not in given:
        return None
    text = given[name].strip()
    if text.isascii() and text.isdigit():
        return checked_ms(name, int(text)) + after
    try:
        return sought_ms(dt.datetime.fromisoformat(text), after=after)
    except ValueError as error:
        raise InvalidConfig(
            f"{name} must be a whole number of milliseconds, or a time like 2024-05-01T00:00, got "
            f"{given[name]!r}"
        ) from error


def checked_ms(name: str, ms: int) -> int:
    """Return the time of an option. Raise InvalidConfig if it looks like another unit."""
    try:
        return sought_ms(ms)
    except InvalidRecord as error:
        raise InvalidConfig(
            f"{name}: {error}, and in startingTimestamp, endingTimestamp and asOfTimestamp as text "
            "like 1979-05-01T00:00"
        ) from error
