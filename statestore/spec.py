"""The declaration of a store: name, types, engine and limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.changelog.settings import LONG_MAX, check_number
from strandline.statestore.internal_names import CHANGELOG
from strandline.statestore.keys import key_codec
from strandline.statestore.serdes import is_immutable
from strandline.statestore.values import ValueCodec

K = TypeVar("K")
V = TypeVar("V")


class Unset:
    """Type of `UNSET`, which stands for "not given" where None is a valid value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = Unset()


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one partition of a store: memory in bytes, and the interval of checkpoints.

    All limits are approximate. Raises InvalidConfig for a negative number.

    Args:
        cache_bytes: Bytes of committed values in the cache. Default 32 MiB.
        dirty_bytes: Bytes of uncommitted changes that cause an early commit. Default 16 MiB.
        overlay_bytes: Bytes of committed changes in memory that cause an early checkpoint.
            Default 64 MiB.
        checkpoint_interval_ms: Milliseconds after which committed changes are written to the
            engine, even if they are few. Default 30 s.
    """

    cache_bytes: int = 32 << 20
    """Maximum bytes of committed values in the cache."""
    dirty_bytes: int = 16 << 20
    """Bytes of uncommitted changes above which `PartitionStore.needs_commit` is True."""
    overlay_bytes: int = 64 << 20
    """Bytes of committed changes in memory above which `needs_checkpoint` is True."""
    checkpoint_interval_ms: int = 30_000
    """Milliseconds since the last checkpoint after which `needs_checkpoint` is True."""

    def __post_init__(self) -> None:
        for name in ("cache_bytes", "dirty_bytes", "overlay_bytes"):
            check_number(name, getattr(self, name), 0, LONG_MAX)
        check_number("checkpoint_interval_ms", self.checkpoint_interval_ms, 0)


@dataclass(frozen=True, slots=True)
class StoreSpec(Generic[K, V]):
    """Declaration of a store; each partition of it is a `PartitionStore`.

    Raises InvalidConfig if the declaration is not valid.

    >>> StoreSpec("totals", key=str, value=int, default=0).changelog_topic("flights")
    'flights-totals-changelog'
    """

    name: str
    """Name of the store: letters, digits, `.`, `_` and `-`. Topics and folders contain it."""
    key: Any = str
    """Type of the keys; see `statestore.keys`."""
    value: Any = None
    """Type of the values, or a serde; None is MessagePack without a type."""
    default: Any = UNSET
    """Immutable default value of a key that was never set."""
    default_factory: Callable[[], V] | None = None
    """Function that makes a new default value for each read; for mutable values."""
    ttl_ms: int | None = None
    """Milliseconds after which a value that was put expires; None for never."""
    engine: Literal["rocksdb", "memory"] = "rocksdb"
    """Engine that stores committed values."""
    limits: StoreLimits = field(default_factory=StoreLimits)
    """Limits of each partition."""
    upgrade: Callable[[Any], Any] | None = None
    """Function that converts a value stored under another declaration to the declared type."""
    figures: tuple[tuple[str, tuple[str, str | None]], ...] | None = None
    """Name, kind and column of each aggregate, if the values are aggregates."""
    definition: str | None = None
    """Definition of the operator whose state it is, besides `figures`; None for other stores."""
    is_counter: bool = False
    """True if the values are counts: those of one key in several partitions are added up."""
    keyed_by: tuple[tuple[str, str], ...] = ()
    """Inputs of the store's task whose key is a column of their values, and that column."""

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
        """Return the name of the store's changelog topic."""
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
    """Return the name of a store's changelog topic.

    >>> changelog_topic("flights", "totals")
    'flights-totals-changelog'
    """
    return f"{app}-{store}{CHANGELOG}"


def store_of(app: str, changelog: str) -> str:
    """Return the name of the store to which a changelog topic belongs.

    >>> store_of("flights", "flights-totals-changelog")
    'totals'
    """
    return changelog.removeprefix(f"{app}-").removesuffix(CHANGELOG)


def _cannot_change(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_cannot_change, value))
    return is_immutable(type(value))


AnySpec = StoreSpec[Any, Any]
