"""A sorted mapping of Python objects with an undo log: what handlers see of a store.

`PartitionStore` is the state of a partition. `StepStore` is what one step, kept apart from others
that run at the same time, sees of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from strandline.changelog.errors import InvalidRecord
from strandline.statestore.counters import Lookups
from strandline.statestore.dirty import DirtyKeys
from strandline.statestore.edit import Edit
from strandline.statestore.engine import Entry
from strandline.statestore.keys import KeyCodec, key_codec
from strandline.statestore.layers import Above
from strandline.statestore.no_len import NoLen
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.spec import UNSET, StoreSpec
from strandline.statestore.values import DELETED, UNSHARED, Expiry, Packed, ValueCodec

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class StoreTypes(Generic[K, V]):
    """Declaration of a store, with the codecs of its keys and values."""

    spec: StoreSpec[K, V]
    keys: KeyCodec[K]
    values: ValueCodec
    default: Any
    """Default value as a reader gets it; UNSET if there is none."""


def store_types(
    spec: StoreSpec[K, V], now: Callable[[], int], expiry: Expiry | None
) -> StoreTypes[K, V]:
    """Return the codecs of a store; `open_store` describes the arguments."""
    values = ValueCodec(spec.value, spec.name, ttl_ms=spec.ttl_ms, now=now, expiry=expiry)
    default = spec.default if spec.default is UNSET else values.as_put(spec.default)
    return StoreTypes(spec, key_codec(spec.key), values, default)


class TypedStore(NoLen, Generic[K, V]):
    """Keys and values of the declared types, above a source of held values."""

    __slots__ = (
        "_dirty",
        "_keys",
        "_values",
        "changed",
        "exact",
        "lookups",
        "plain",
        "puts",
        "spec",
        "types",
        "unchecked",
        "young",
    )

    def __init__(
        self,
        types: StoreTypes[K, V],
        young: dict[Any, Any],
        lookups: Lookups,
    ) -> None:
        self.types = types
        self.spec = types.spec
        self.lookups = lookups
        self._keys = types.keys
        self._values = types.values
        self._dirty = DirtyKeys(types.keys.encode)
        # Everything that the fast paths of get and put need, here and in the framework's handle,
        # is one attribute away. The lists and the dict stay the same objects for the store's life.
        self.young = young
        self.changed = self._dirty.changed
        self.puts = self._dirty.put
        self.exact: Any = types.keys.exact
        self.plain: Any = types.values.plain
        self.unchecked: Any = types.values.unchecked

    # Used by a task ---------------------------------------------------------------------

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = UNSET) -> Any:
        """Return the value of a key; else `default`, else the store's own default, else None.

        Raises InvalidRecord for a key that is not of the declared type.
        """
        if type(key) is not self.exact:
            key = self._admit(key)
            if self.lookups.in_sample:
                self.lookups.looked_up(key)
        held = self.young.get(key)
        if held is None:
            held = self._load(key)
        if type(held) is self.plain:
            return held
        value = self._values.value(held)
        if value is not UNSHARED:
            return value
        return self._default(None) if default is UNSET else default

    def __getitem__(self, key: K) -> V:
        """Return the value of a key, else the store's default. Raises KeyError if it has none."""
        if type(key) is not self.exact:
            key = self._admit(key)
            if self.lookups.in_sample:
                self.lookups.looked_up(key)
        held = self.young.get(key)
        if held is None:
            held = self._load(key)
        if type(held) is self.plain:
            return held  # type: ignore[no-any-return]
        value = self._values.value(held)
        if value is UNSHARED:
            value = self._default(UNSET)
            if value is UNSET:
                raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def put(self, key: K, value: V) -> None:
        """Set the value of a key, as `store[key] = value` does.

        Raises:
            InvalidRecord: Key or value are not of the declared types.
            TypeError: The value is None.
        """
        if type(key) is not self.exact:
            key = self._admit(key)
        self.put_admitted(key, value)

    __setitem__ = put

    def delete(self, key: K) -> None:
        """Remove a key if it exists."""
        self.delete_admitted(self._admit(key))

    def __delitem__(self, key: K) -> None:
        """Remove a key. Raises KeyError if it does not exist."""
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: K) -> bool:
        return self.get(key, UNSHARED) is not UNSHARED

    def delete_range(self, lower: K | None = None, upper: K | None = None) -> None:
        """Remove all keys from `lower` to `upper`, as in `range`."""
        self._delete_all(*self._bounds(lower, upper))

    def delete_prefix(self, prefix: Any) -> None:
        """Remove all keys that begin with `prefix`, as in `prefix`."""
        self._delete_all(*self._keys.prefix(prefix))

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key that has none and return None; else return its value."""
        found = self.get(key, None)
        if found is None:
            self.put(key, value)
        return found

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the keys that have one; the engine reads all keys in one call."""
        wanted = [self._admit(key) for key in keys]
        self.prepare(wanted)
        values = ((key, self.get(key, UNSHARED)) for key in wanted)
        return {key: value for key, value in values if value is not UNSHARED}

    def edit(self, key: K) -> Edit[K, V]:
        """Return a context manager to change a mutable value in place.

        The value is put when the block ends without an error. A key without a value starts with the
        store's default. Raises KeyError if there is no default.

        >>> from strandline.statestore import open_store
        >>> spec = StoreSpec("seen", value=list[str], default_factory=list, engine="memory")
        >>> store = open_store(spec)
        >>> with store.edit("LHR") as carriers:
        ...     carriers.append("BA")
        >>> store["LHR"]
        ['BA']
        """
        return Edit(self, key, immutable=self._values.immutable)

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Return an iterator of the entries from `lower` to `upper`, in the order of the keys.

        The module's docstring describes changes during a scan.

        Args:
            lower: First key; None for no limit. Of a tuple key, leading elements are enough.
            upper: End of the range (exclusive); None for no limit. As for `lower`.
            reverse: True to begin with the last entry.
        """
        return self._entries(*self._bounds(lower, upper), reverse)

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return an iterator of the entries whose key begins with `prefix`.

        The prefix is a str, bytes, or a tuple with the first elements of tuple keys.
        """
        first, last = self._keys.prefix(prefix)
        return self._entries(first, last, reverse)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return an iterator of all entries, in the order of the keys."""
        return self.range(reverse=reverse)

    def reverse(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Return an iterator of the entries of `range(lower, upper)`, the last one first."""
        return self.range(lower, upper, reverse=True)

    # Keys known to be of the declared type -------------------------------------------------

    def held(self, key: Any) -> Any:
        """Return the value of a key as of now, in the form in which it is held."""
        held = self.young.get(key)
        return self._load(key) if held is None else held

    def put_admitted(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        held = value if type(value) is self.unchecked else self._hold(value)
        self.changed.append(key)
        self.puts.append(held)
        self.young[key] = held

    def delete_admitted(self, key: Any) -> None:
        """Remove a key."""
        self._writable()
        self._remove(key)

    # Overridden by subclasses -------------------------------------------------------------

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys; each pending change counts as one more key."""
        raise NotImplementedError

    def prepare(self, keys: Sequence[K]) -> None:
        """Read the values of several keys that are likely to be looked up next."""
        raise NotImplementedError

    def _load(self, key: Any) -> Any:
        """Return the held value of a key that is not in `young`."""
        raise NotImplementedError

    def _above(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Above:
        """Return this store's own changes of [lower, upper) as of now."""
        changes = self._dirty.scan(self._values.dumps, lower, upper, reverse=reverse)
        return Above(changes, self._dirty.ranges)

    def _scan(
        self, above: Above, lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> Iterator[Entry]:
        """Return the stored entries of [lower, upper) under the store's own changes."""
        raise NotImplementedError

    def _writable(self) -> None:
        """Raise InvalidTxnState if the store cannot be changed now."""
        raise NotImplementedError

    # Helpers ----------------------------------------------------------------------------

    def _default(self, otherwise: Any) -> Any:
        if self.spec.default_factory is not None:
            return self.spec.default_factory()
        return otherwise if self.types.default is UNSET else self.types.default

    def _admit(self, key: Any) -> Any:
        try:
            return self._keys.admit(key)
        except InvalidRecord as error:
            raise InvalidRecord(f"store {self.spec.name!r}: {error}") from error

    def _hold(self, value: Any) -> Any:
        """Return the form in which a put value is held, and count its bytes."""
        self._writable()
        try:
            held = self._values.hold(value)
        except InvalidRecord as error:
            raise InvalidRecord(f"store {self.spec.name!r}: {error}") from error
        if type(held) is Packed:
            self._dirty.nbytes += len(held.data or b"")
        return held

    def _bounds(self, lower: K | None, upper: K | None) -> tuple[bytes, bytes | None]:
        first = FIRST_KEY if lower is None else self._keys.bound(lower)
        return first, None if upper is None else self._keys.bound(upper)

    def _stored(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Iterator[Entry]:
        """Return the entries of [lower, upper) as of now, including those that have expired."""
        above = self._above(lower, upper, reverse=reverse)
        return self._scan(above, lower, upper, reverse=reverse)

    def _entries(self, lower: bytes, upper: bytes | None, reverse: bool) -> Iterator[tuple[K, V]]:
        values = self._values
        entries = self._stored(lower, upper, reverse=reverse)
        decode, loads = self._keys.decode, values.loads
        if values.expiry != "none":
            entries = ((key, data) for key, data in entries if not values.expired(data))
        return ((decode(key), loads(data)) for key, data in entries)

    def _delete_all(self, lower: bytes, upper: bytes | None) -> None:
        """Remove the keys of [lower, upper)."""
        self._writable()
        keys = [self._keys.decode(name) for name, _ in self._stored(lower, upper, reverse=False)]
        self._dirty.delete_range(lower, upper, keys)
        self.young.update(dict.fromkeys(keys, DELETED))

    def _remove(self, key: Any) -> None:
        self.changed.append(key)
        self.puts.append(DELETED)
        self.young[key] = DELETED
