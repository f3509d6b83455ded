"""What a store is declared to be: its name, its types, its engine and its limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.changelog.settings import LONG_MAX, check_number
from strandline.statestore.keys import key_codec
from strandline.statestore.serdes import is_immutable
from strandline.statestore.values import ValueCodec

K = TypeVar("K")
V = TypeVar("V")


class Unset:
    """Stands for "not given" where None would be a value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = Unset()


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Memory that one partition of a store may use, in bytes, and how long changes wait."""

    cache_bytes: int = 32 << 20
    """Of committed values kept at hand."""
    dirty_bytes: int = 16 << 20
    """Of uncommitted changes; beyond it `needs_commit`."""
    overlay_bytes: int = 64 << 20
    """Of committed changes that are not in the engine; beyond it `needs_checkpoint`."""
    checkpoint_interval_ms: int = 30_000
    """After this time committed changes should go to the engine however few they are."""

    def __post_init__(self) -> None:
        for name in ("cache_bytes", "dirty_bytes", "overlay_bytes"):
            check_number(name, getattr(self, name), 0, LONG_MAX)
        check_number("checkpoint_interval_ms", self.checkpoint_interval_ms, 0)


@dataclass(frozen=True, slots=True)
class StoreSpec(Generic[K, V]):
    """A store as it is declared; each partition of it is a `PartitionStore`.

    Raises InvalidConfig if the declaration cannot hold.

    >>> StoreSpec("totals", key=str, value=int, default=0).changelog_topic("flights")
    'flights-totals-changelog'
    """

    name: str
    """Letters, digits, `.`, `_` and `-`: it is a part of a topic's and a folder's name."""
    key: Any = str
    """Type of the keys; see `statestore.keys`."""
    value: Any = None
    """Type of the values, or a serde; None is MessagePack without a type."""
    default: Any = UNSET
    """Immutable value of a key that was never set."""
    default_factory: Callable[[], V] | None = None
    """Makes that value, for each reader anew."""
    ttl_ms: int | None = None
    """How long a value lives after it was put; None is for ever."""
    engine: Literal["rocksdb", "memory"] = "rocksdb"
    """Where committed values are kept."""
    limits: StoreLimits = field(default_factory=StoreLimits)
    upgrade: Callable[[Any], Any] | None = None
    """Makes a value of the declared type from one that was stored under another declaration."""
    figures: tuple[tuple[str, tuple[str, str | None]], ...] | None = None
    """Name, kind and column of each aggregate, if that is what values are."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", self.name) or self.name in (".", ".."):
            raise InvalidConfig(
                f"{self.name!r} cannot be a store's name; use 1 to 100 of A-Z a-z 0-9 . _ -"
            )
        if self.engine not in ("rocksdb", "memory"):
            raise self._refusal(f"unknown engine {self.engine!r}; use 'rocksdb' or 'memory'")
        if self.ttl_ms is not None:
            check_number(f"store {self.name!r}: ttl_ms", self.ttl_ms, 1)
        if self.upgrade is not None and not callable(self.upgrade):
            raise self._refusal(f"upgrade= is a function of an old value, got {self.upgrade!r}")
        key_codec(self.key)
        self._check_default()

    def changelog_topic(self, app: str) -> str:
        """The name of its changelog's topic."""
        return changelog_topic(app, self.name)

    def _check_default(self) -> None:
        codec = ValueCodec(self.value)
        if self.default is UNSET:
            return
        if self.default_factory is not None:
            raise self._refusal("give default or default_factory, not both")
        if not _cannot_change(self.default):
            raise self._refusal(
                f"default {self.default!r} can be changed and would be shared by all keys; "
                "use default_factory="
            )
        try:
            codec.hold(self.default)
        except (InvalidRecord, TypeError) as error:
            raise self._refusal(f"default {self.default!r} is no value of it: {error}") from error

    def _refusal(self, why: str) -> InvalidConfig:
        return InvalidConfig(f"store {self.name!r}: {why}")


def changelog_topic(app: str, store: str) -> str:
    """The name of the topic that is the changelog of a store.

    >>> changelog_topic("flights", "totals")
    'flights-totals-changelog'
    """
    return f"{app}-{store}-changelog"


def store_of(app: str, changelog: str) -> str:
    """The name of the store whose changelog a topic is.

    >>> store_of("flights", "flights-totals-changelog")
    'totals'
    """
    return changelog.removeprefix(f"{app}-").removesuffix("-changelog")


def _cannot_change(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_cannot_change, value))
    return is_immutable(type(value))


AnySpec = StoreSpec[Any, Any]
