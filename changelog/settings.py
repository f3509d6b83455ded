"""Parses and checks settings, with clear errors for invalid ones.

A class of settings is a dataclass whose annotations define the allowed values: a Literal of words,
`Annotated[int, SettingRange(…)]`, or bool. `Settings` reads the annotations, and maps attributes
to Kafka's names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from strandline.changelog.errors import InvalidConfig

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
LONGEST_MS = 36_525 * 24 * 60 * 60 * 1000
"""Maximum milliseconds of any wait: 100 years. Added to the current time it fits into 64 bits, and
into the arguments of system calls. Durations that are only compared with an age may be longer."""

MAX_TEXT_CHARS = 100
"""Maximum number of characters of a new value, because the catalog keeps it as it was given."""

Source = Literal["topic", "log", "default"]


class Setting(NamedTuple):
    """Description of a setting."""

    name: str
    """Kafka's name of the setting."""
    value: str
    source: Source
    """Source of the value: set on the topic, set for the whole log, or built in."""


class SettingRange(NamedTuple):
    """Allowed numbers of a setting, both ends included."""

    low: float
    high: float = LONG_MAX
    stored: float = -1
    """Largest value that earlier versions accepted. Stored values from `high` up to it are read as
    `high`."""


class Settings:
    """The settings of a config class, by Kafka's names.

    A name is `prefix` followed by the attribute's name with dots. `what` ("topic", "log") is the
    kind of setting in error messages.
    """

    def __init__(self, config: type, what: str, prefix: str = "") -> None:
        self._what = what
        self._kinds: dict[str, _Number | _Choice | _Flag] = {}
        for attribute, hint in get_type_hints(config, include_extras=True).items():
            name = prefix + attribute.replace("_", ".")
            self._kinds[name] = _kind_of(attribute, hint)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all settings."""
        return tuple(self._kinds)

    def parse(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Convert texts by name to values by attribute. Raises InvalidConfig."""
        check_names(given, self.names, self._what)
        kinds = self._kinds
        return {kinds[name].attribute: self.value(name, given[name], name) for name in given}

    def value(self, name: str, text: str, called: str) -> Any:
        """Return the value of a text; `called` is the name of the setting in errors.

        A number that an earlier version accepted and that is too large now is read as the largest
        allowed one. Raises InvalidConfig.
        """
        kind = self._kinds[name]
        value = kind.parse(checked_text(text, called), called)
        if isinstance(kind, _Number) and not isinstance(value, str):
            _, high, stored = kind.range
            value = high if high < value <= stored else value
        if not kind.allows(value):
            raise kind.refused(value, called)
        return value

    def are_same(self, name: str, one: str, other: str) -> bool:
        """Return True if two texts mean the same value of a setting. Raises InvalidConfig."""
        kind = self._kinds[name]
        return kind.parse(one, name) == kind.parse(other, name)

    def check_given(self, name: str, text: str, called: str) -> None:
        """Raise InvalidConfig unless the setting may be set to this text in this version."""
        kind = self._kinds[name]
        if len(checked_text(text, called)) > MAX_TEXT_CHARS:
            raise InvalidConfig(
                f"{called} has at most {MAX_TEXT_CHARS} characters, got {len(text):,}; "
                "write it without spaces and leading zeros"
            )
        value = kind.parse(text, called)
        if not kind.allows(value):
            raise kind.refused(value, called)

    def check(self, config: object) -> None:
        """Raise InvalidConfig unless every value is allowed."""
        for name, kind in self._kinds.items():
            value = getattr(config, kind.attribute)
            if not kind.allows(value):
                raise kind.refused(value, name)

    def as_strings(self, config: object) -> dict[str, str]:
        """Return all settings, including defaults, in the form that `parse` accepts."""
        return {
            name: kind.text(getattr(config, kind.attribute)) for name, kind in self._kinds.items()
        }


def check_names(given: Iterable[str], known: tuple[str, ...], what: str) -> None:
    """Raise InvalidConfig for an unknown name; the error suggests the most similar known one."""
    for name in given:
        if name not in known:
            near = _closest(name, known) or f"; there are {_listed(known)}"
            raise InvalidConfig(f"no {what} setting is called {name!r}{near}")


def check_number(
    name: str, value: object, low: float, high: float = LONGEST_MS, *, whole: bool = True
) -> None:
    """Raise InvalidConfig unless the argument called `name` is a number from `low` to `high`.

    >>> check_number("poll_ms", 100, 1)
    >>> check_number("poll_ms", 2**63, 1)
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidConfig: poll_ms must be a whole number from 1 to
    3155760000000, got 9223372036854775808
    """
    kind = _Number(name, int if whole else float, SettingRange(low, high))
    if not kind.allows(value):
        raise kind.refused(value, name)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise InvalidConfig unless the argument called `name` is one of several words.

    >>> check_choice("role", "none", ("own", "attach"))
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidConfig: role must be one of 'own', 'attach', got 'none'
    """
    if value not in choices:
        raise InvalidConfig(f"{name} must be one of {_listed(choices)}, got {value!r}")


def checked_text(text: object, name: str) -> str:
    """Return `text` if it is a string. Raises InvalidConfig otherwise."""
    if not isinstance(text, str):
        raise InvalidConfig(
            f"{name} must be a string: write {str(text)!r}, got {text!r} ({type(text).__name__})"
        )
    return text


@dataclass(frozen=True, slots=True)
class _Number:
    """A setting that is a number."""

    attribute: str
    type: type[int | float]
    range: SettingRange

    def parse(self, text: str, name: str) -> int | float:
        # int() and float() also accept underscores, infinities and digits of other scripts.
        if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", text.strip()):
            raise self.refused(text, name)
        try:
            return self.type(text)
        except ValueError:
            raise self.refused(text, name) from None

    def allows(self, value: object) -> bool:
        if not isinstance(value, (int, self.type)) or isinstance(value, bool):
            return False
        return self.range.low <= value <= self.range.high

    def refused(self, got: object, name: str) -> InvalidConfig:
        kind = "a whole number" if self.type is int else "a number"
        low, high, _ = self.range
        return InvalidConfig(f"{name} must be {kind} from {low} to {high}, got {got!r}")

    def text(self, value: float) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A setting that is one of a few words."""

    attribute: str
    words: tuple[str, ...]

    def parse(self, text: str, name: str) -> str:
        # Kafka takes a list of policies in any order: 'delete, compact' is 'compact,delete'.
        return ",".join(sorted({part.strip() for part in text.split(",")}))

    def allows(self, value: object) -> bool:
        return value in self.words

    def refused(self, got: object, name: str) -> InvalidConfig:
        near = _closest(str(got), self.words)
        return InvalidConfig(f"{name} must be one of {_listed(self.words)}, got {got!r}{near}")

    def text(self, value: str) -> str:
        return value


@dataclass(frozen=True, slots=True)
class _Flag:
    """A setting that is true or false."""

    attribute: str

    def parse(self, text: str, name: str) -> bool:
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise self.refused(text, name)
        return word == "true"

    def allows(self, value: object) -> bool:
        return isinstance(value, bool)

    def refused(self, got: object, name: str) -> InvalidConfig:
        return InvalidConfig(f"{name} must be 'true' or 'false', got {got!r}")

    def text(self, value: bool) -> str:
        return str(value).lower()


def _kind_of(attribute: str, hint: Any) -> _Number | _Choice | _Flag:
    if hint is bool:
        return _Flag(attribute)
    if get_origin(hint) is Literal:
        return _Choice(attribute, get_args(hint))
    return _Number(attribute, *get_args(hint))


def _closest(word: str, known: tuple[str, ...]) -> str:
    lowered = {choice.lower(): choice for choice in known}
    near = difflib.get_close_matches(word.lower().replace("_", "."), lowered, n=1)
    return f"; did you mean {lowered[near[0]]!r}?" if near else ""


def _listed(words: Sequence[str]) -> str:
    return ", ".join(repr(word) for word in words)
