"""Forms in which a store holds its values, so that readers cannot change each other's.

A value of an immutable type is held as the object itself and shared by all readers. Any other value
is held as its bytes and decoded for each reader. A value is encoded and decoded once when it is
put, so a value that could not be read after a restart is refused at once, and the held object
equals the stored bytes. Only values that are exactly int, float or bool skip this check, because
all of them can be encoded.

In a store with a time to live a stored value begins with C1 and 8 bytes of expiry time (ms since
the epoch, big-endian; 0: never). It is part of the value, so a restore finds it too. The set of
values that begin with an expiry is recorded with the store's declaration
(`statestore.declaration`):

    none      no value
    marked    values whose first byte is C1, which MessagePack never uses
    always    every value, because bytes and a serde's output may begin with any byte

A stored value that cannot be decoded raises `CorruptLog`, because no input record causes that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn

import msgspec
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.errors import CorruptLog, InvalidRecord, StrandlineError
from strandline.statestore.keys import Never
from strandline.statestore.packing import pack_ints
from strandline.statestore.serdes import (
    MessagePack,
    Serde,
    TypedMessagePack,
    is_immutable,
    type_name,
    value_serde,
)

Expiry = Literal["none", "marked", "always"]
"""Set of stored values that begin with their expiry."""


class Packed(msgspec.Struct, frozen=True, gc=False):
    """Value held as its bytes, with or without its object."""

    data: bytes | None
    """Stored bytes; None is a deletion."""
    shared: Any
    """Immutable object shared by all readers; `UNSHARED` if each reader decodes the bytes."""
    expires: int = 0
    """Expiry in ms since the epoch; 0 is never."""


UNSHARED: Any = object()
"""Marks the absence of a shared object, and of a value."""
DELETED = Packed(None, UNSHARED)
"""Held form of a deletion."""


class ValueCodec:
    """Converts values of one declared type between objects, the form that is held, and bytes."""

    def __init__(
        self,
        declared: Any,
        store: str = "",
        *,
        ttl_ms: int | None = None,
        now: Callable[[], int] | None = None,
        expiry: Expiry | None = None,
    ) -> None:
        """Make the codec of a store's values.

        Args:
            declared: Declared type of the values, or a serde.
            store: Name of the store, for messages.
            ttl_ms: Milliseconds after which a value expires; None for never.
            now: Returns the time in ms against which values expire.
            expiry: Set of stored values that begin with an expiry, as recorded for the store; by
                default that of a new store.
        """
        self.declared = declared
        self.store = store
        self.serde: Serde[Any] = value_serde(declared)
        self.ttl_ms = ttl_ms
        is_messagepack = isinstance(self.serde, MessagePack | TypedMessagePack)
        own: Expiry = "none" if ttl_ms is None else "marked" if is_messagepack else "always"
        self.expiry: Expiry = own if expiry is None else expiry
        self._always_has_expiry = self.expiry == "always"
        self._has_expiry = self.expiry != "none"
        self._now = now
        self.undecodable: StrandlineError | None = None
        """Last error of stored bytes that could not be decoded, until the changes are undone."""
        self._untyped = declared in (None, Any, object)
        self.immutable = bool(getattr(self.serde, "immutable", False)) or (
            not self._untyped and self.serde is not declared and is_immutable(declared)
        )
        plain = int if self._untyped else declared
        self.unchecked: type = plain if plain in (int, float, bool) and not ttl_ms else Never
        """Type whose objects are held as they are, without a call of `hold`."""
        is_type = isinstance(plain, type) and (self.immutable or self._untyped)
        self.plain: type = plain if is_type and not ttl_ms else Never
        """Type whose held objects are the values themselves."""

    def hold(self, value: Any) -> Any:
        """Return the form in which a put value is held. Raises InvalidRecord, TypeError."""
        if value is None:
            raise TypeError("None is no value of a store; to remove a key use `del store[key]`")
        if self._untyped and type(value) in (float, bool) and not self.ttl_ms:
            return value
        data = self.serde.dumps(value)
        try:
            back = self.serde.loads(data)
        except InvalidRecord as error:
            raise InvalidRecord(
                f"a value of this store must be {type_name(self.declared)}, got {value!r:.200} "
                f"({type(value).__name__}); {error.__cause__ or error}"
            ) from error
        shared = back if self.immutable or type(back) in _SCALARS else UNSHARED
        if self.ttl_ms is None and not self._always_has_expiry:
            return Packed(data, shared)
        expires = NO_EXPIRY if self.ttl_ms is None else self.now() + self.ttl_ms
        return Packed(framed(data, expires), shared, expires)

    def as_put(self, value: Any) -> Any:
        """Return a put value as a reader gets it, encoded and decoded. Raises InvalidRecord."""
        return self.serde.loads(self.serde.dumps(value))

    def finalize(self, entries: dict[Any, Any], keys: Iterable[Any]) -> None:
        """Hold committed entries with a shared object as that object alone, without their bytes."""
        if self.unchecked is self.declared or self._always_has_expiry:
            return
        for key in keys:
            held = entries[key]
            if type(held) is Packed and held.shared is not UNSHARED and not held.expires:
                entries[key] = held.shared

    def dump_all(self, entries: list[Any]) -> pa.Array:
        """Return the stored bytes of held values as a column; a deletion is a null."""
        if self.unchecked is int and set(map(type, entries)) == {int}:
            with contextlib.suppress(OverflowError):
                return pack_ints(entries)
        dumps = self.serde.dumps
        data = [held.data if type(held) is Packed else dumps(held) for held in entries]
        return of_items(data, pa.binary())

    def dumps(self, held: Any) -> bytes | None:
        """Return the stored bytes of a held value; None for a deletion."""
        return held.data if type(held) is Packed else self.serde.dumps(held)

    def held(self, data: bytes) -> Any:
        """Return the held form of stored bytes. Raises CorruptLog."""
        body, expires = split(data, self.expiry) if self._has_expiry else (data, 0)
        if self.immutable or self._untyped:
            try:
                value = self.serde.loads(body)
            except Exception as error:
                self._raise_undecodable(error)
            if self.immutable or type(value) in _SCALARS:
                return Packed(data, value, expires) if expires else value
        return Packed(data, UNSHARED, expires)

    def loads(self, data: bytes) -> Any:
        """Decode the value of stored bytes for one reader. Raises CorruptLog."""
        body = split(data, self.expiry)[0] if self._has_expiry else data
        try:
            return self.serde.loads(body)
        except Exception as error:
            self._raise_undecodable(error)

    def body(self, data: bytes) -> bytes | None:
        """Return the bytes of the value itself, without its expiry; None if it has expired."""
        if not self._has_expiry:
            return data
        body, expires = split(data, self.expiry)
        return None if expires and expires <= self.now() else body

    def value(self, held: Any) -> Any:
        """Return a held value for one reader; `UNSHARED` if it was deleted or has expired."""
        if type(held) is not Packed:
            return held
        if held.data is None or (held.expires and held.expires <= self.now()):
            return UNSHARED
        return self.loads(held.data) if held.shared is UNSHARED else held.shared

    def expired(self, data: bytes) -> bool:
        """Return True if stored bytes have expired."""
        expires = self.expires(data)
        return expires is not None and expires <= self.now()

    def expires(self, data: bytes) -> int | None:
        """Return the time in ms at which stored bytes expire; None if they never do."""
        if not self._has_expiry or data[:1] != EXPIRING:
            return None
        return split(data, self.expiry)[1] or None

    def now(self) -> int:
        """Return the time against which values expire, in ms since the epoch."""
        return self._now() if self._now is not None else 0

    def _raise_undecodable(self, error: Exception) -> NoReturn:
        """Raise CorruptLog for stored bytes that cannot be decoded; pass other errors on."""
        passes = isinstance(error, StrandlineError) and not isinstance(error, InvalidRecord)
        if passes or isinstance(error, MemoryError):
            raise error
        self.undecodable = CorruptLog(
            f"store {self.store!r}: a stored value cannot be decoded as {type_name(self.declared)} "
            f"({error!r:.500}); it was not written with this declaration of the store"
        )
        raise self.undecodable from error


def framed(body: bytes, expires: int) -> bytes:
    """Return an expiry (ms since the epoch, 0: never) followed by the bytes of a value."""
    return EXPIRING + expires.to_bytes(8, "big", signed=True) + body


def split(data: bytes, expiry: Expiry) -> tuple[bytes, int]:
    """Split stored bytes into those of the value and its expiry (0: never). Raises CorruptLog.

    >>> split(framed(b"x", 7), "always"), split(b"x", "marked")
    ((b'x', 7), (b'x', 0))
    """
    if expiry == "none":
        return data, 0
    if data[:1] == EXPIRING and len(data) >= HEADER_BYTES:
        return data[HEADER_BYTES:], int.from_bytes(data[1:HEADER_BYTES], "big", signed=True)
    if expiry == "always":
        raise CorruptLog(
            f"a stored value has no expiry, although all values of its store have one: {data!r:.80}"
        )
    return data, 0


EXPIRING = b"\xc1"
"""First byte of a stored value with an expiry."""
HEADER_BYTES = 9
NO_EXPIRY = 0
"""Expiry of a value that is kept for ever, in place of milliseconds since the epoch."""
_SCALARS = (int, float, bool, str, bytes)
