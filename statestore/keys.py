"""Encoding of store keys as bytes that sort in the order of the keys.

Each declared key type has a `KeyCodec`. Key types are `str`, `int` (of any size), `float`, `bytes`,
`bool`, `datetime` (aware), `date`, and tuples of them, nested or not: `tuple[str, int]`,
`tuple[str, ...]`, with `X | None` inside a tuple. Types are checked exactly: `1`, `1.0` and `True`
are equal in Python, so a store of `int` keys refuses the other two.

`statestore.ordered` describes the bytes. The keys of another framework's tables have its bytes
instead (`statestore.foreign_keys`).
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

import pyarrow as pa

from strandline.changelog.errors import InvalidConfig, InvalidRecord, InvalidRequest
from strandline.statestore.foreign_keys import (
    FOREIGN_KEYS,
    JSON_KEYS,
    AsciiJsonKey,
    JsonKey,
    RawKey,
    admit_json,
    admit_raw,
    encode_ascii_json,
    encode_json,
    json_decoder_of,
)
from strandline.statestore.key_encoding import encoder
from strandline.statestore.ordered import (
    BEHIND_ELEMENTS,
    TAG_BYTES,
    TAG_STR,
    TAG_TUPLE,
    decode_bytes,
    decode_one,
    decode_str,
    decode_tuple,
    decode_whole,
    encode_bool,
    encode_bytes,
    encode_date,
    encode_datetime,
    encode_float,
    encode_int,
    encode_str,
    encode_strs,
    encode_tuple,
)

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class KeyCodec(Generic[K]):
    """Functions that check, encode and decode the keys of one declared type."""

    declared: Any
    """Declared type."""
    exact: type
    """Type whose objects need no check; `Never` if all objects need one."""
    admit: Callable[[Any], K]
    """Checks a key and returns it in the form in which it is held. Raises InvalidRecord."""
    encode: Callable[[K], bytes]
    """Encodes an admitted key."""
    decode: Callable[[bytes], K]
    """Decodes a key. Raises CorruptLog."""
    encode_all: Callable[[Collection[K]], pa.Array]
    """Encodes many admitted keys as a column."""
    element_admits: tuple[Callable[[Any], Any], ...] = ()
    """Checks of the elements of a tuple of fixed length; else empty."""

    @property
    def is_ordered(self) -> bool:
        """True if the encoded keys sort in the order of the keys."""
        return self.declared not in JSON_KEYS

    @property
    def is_foreign(self) -> bool:
        """True if another framework writes the keys, so that they are not self-describing."""
        return self.declared in FOREIGN_KEYS

    def bound(self, key: Any) -> bytes:
        """Encode an end of a range; of tuple keys, leading elements are enough.

        Raises InvalidRequest for keys without an order.
        """
        self._check_ordered()
        return encode_tuple(self._leading(key)) if self.is_tuple else self.encode(self.admit(key))

    def prefix(self, prefix: Any) -> tuple[bytes, bytes | None]:
        """Return the range [lower, upper) of encoded keys that begin with `prefix`.

        >>> key_codec(str).prefix("ab")
        (b'Qab', b'Qac')
        >>> key_codec(tuple[str, int]).prefix(("ab",))
        (b'`Qab\\x00', b'`Qab\\x00\\xff')

        Raises InvalidRequest for keys without an order.
        """
        self._check_ordered()
        if self.is_tuple:
            lower = encode_tuple(self._leading(prefix))
            return lower, lower + BEHIND_ELEMENTS
        if self.declared in (str, bytes, RawKey):
            lower = self.encode(self.admit(prefix))
        else:
            raise InvalidRecord(
                f"prefix() is for str, bytes and tuple keys; this store's are {self.name}; "
                "use range(lower, upper)"
            )
        return lower, prefix_end(lower)

    @property
    def is_tuple(self) -> bool:
        """True if keys are tuples."""
        return get_origin(self.declared) is tuple

    @property
    def name(self) -> str:
        """Name of the declared type, as in source code."""
        return _NAMES.get(self.declared) or _name(self.declared)

    def _check_ordered(self) -> None:
        if not self.is_ordered:
            raise InvalidRequest(
                "keys written as JSON have no order, so there are no ranges and prefixes of them; "
                "use get, get_many, or all() and a condition"
            )

    def _leading(self, prefix: Any) -> tuple[Any, ...]:
        if type(prefix) is not tuple:
            raise _refusal(self.name, prefix, "give the leading elements as a tuple")
        if not self.element_admits:
            return self.admit(prefix)  # type: ignore[return-value]
        if len(prefix) > len(self.element_admits):
            raise _refusal(self.name, prefix, "give at most as many elements as a key has")
        return tuple(admit(item) for admit, item in zip(self.element_admits, prefix, strict=False))


class Never:
    """Type without objects, used in place of a type that may skip a check."""


def key_codec(declared: Any) -> KeyCodec[Any]:
    """Return the codec of a declared key type. Raises InvalidConfig if it cannot be a key type.

    >>> codec = key_codec(tuple[str, int])
    >>> codec.decode(codec.encode(("LHR", -3)))
    ('LHR', -3)
    >>> key_codec(int).admit(True)
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidRecord: a key of this store must be int, got True (bool); ...
    """
    # A NewType stands for its supertype.
    declared = getattr(declared, "__supertype__", declared)
    scalar = _SCALARS.get(declared) if isinstance(declared, Hashable) else None
    if scalar is not None:
        exact = declared if scalar.exact else Never
        encode_all = scalar.encode_all or encoder(declared, scalar.encode)
        return KeyCodec(declared, exact, scalar.admit, scalar.encode, scalar.decode, encode_all)
    if get_origin(declared) is tuple and get_args(declared):
        elements, variadic = _tuple_elements(declared)
        leading = () if variadic else elements
        admit = _tuple_admit(_name(declared), elements, variadic=variadic)
        encode_all = encoder(declared, encode_tuple)
        return KeyCodec(declared, Never, admit, encode_tuple, decode_tuple, encode_all, leading)
    raise InvalidConfig(
        f"{_name(declared)} cannot be a key type; use str, int, float, bytes, bool, datetime, "
        "date, or a tuple that names its elements, as tuple[str, int]"
    )


def decode_key(data: bytes) -> Any:
    """Decode a key of any type, for tools that do not know the declared one. Raises CorruptLog.

    >>> decode_key(key_codec(str).encode("LHR"))
    'LHR'
    """
    tag = data[0] if data else 0
    if tag == TAG_STR:
        return decode_str(data)
    if tag == TAG_BYTES:
        return data[1:]
    if tag == TAG_TUPLE:
        return decode_tuple(data)
    return decode_whole(data)


def codec_of(key: Any) -> KeyCodec[Any]:
    """Return the codec for the type of a key. Raises InvalidConfig if it cannot be a key.

    >>> codec_of(("LHR", 3)).name
    'tuple[str, int]'
    """
    return key_codec(_type_of(key))


def _type_of(key: Any) -> Any:
    if isinstance(key, tuple):
        elements = (str | None if item is None else _type_of(item) for item in key)
        return types.GenericAlias(tuple, tuple(elements))
    return type(key)


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the end (exclusive) of the byte strings that begin with `prefix`; None if unlimited.

    >>> prefix_end(b"ab"), prefix_end(b"a\\xff"), prefix_end(b"\\xff")
    (b'ac', b'b', None)
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


# Scalars ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scalar:
    admit: Callable[[Any], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    exact: bool = True
    encode_all: Callable[[Collection[Any]], pa.Array] | None = None


def _admits(declared: type) -> Callable[[Any], Any]:
    def admit(key: Any) -> Any:
        if type(key) is declared:
            return key
        raise _refusal(declared.__name__, key, f"convert it to {declared.__name__} first")

    return admit


def _admit_float(key: Any) -> float:
    if type(key) is not float:
        raise _refusal("float", key, "convert it to float first")
    if math.isnan(key):
        raise _refusal("float", key, "NaN equals nothing, so it cannot be found again")
    return key


def _admit_datetime(key: Any) -> datetime:
    if type(key) is not datetime:
        raise _refusal("datetime", key, "convert it to datetime first")
    if key.utcoffset() is None:
        raise _refusal("datetime", key, "it is naive: give it a tzinfo, as datetime.UTC")
    return key.astimezone(UTC)


# Tuples -------------------------------------------------------------------------------


def _tuple_admit(
    name: str, elements: Sequence[Callable[[Any], Any]], *, variadic: bool
) -> Callable[[Any], Any]:
    def admit(key: Any) -> tuple[Any, ...]:
        if type(key) is not tuple:
            raise _refusal(name, key, "give a plain tuple")
        if variadic:
            return tuple(map(elements[0], key))
        if len(key) != len(elements):
            raise _refusal(name, key, f"give {len(elements)} elements")
        return tuple([check(item) for check, item in zip(elements, key, strict=True)])

    return admit


def _tuple_elements(declared: Any) -> tuple[tuple[Callable[[Any], Any], ...], bool]:
    arguments = get_args(declared)
    variadic = len(arguments) == 2 and arguments[1] is Ellipsis
    named = arguments[:1] if variadic else arguments
    return tuple(_element_admit(argument) for argument in named), variadic


def _element_admit(declared: Any) -> Callable[[Any], Any]:
    if get_origin(declared) in (Union, types.UnionType):
        inner = [argument for argument in get_args(declared) if argument is not type(None)]
        if len(inner) != 1 or len(get_args(declared)) != 2:
            raise InvalidConfig(
                f"{_name(declared)} cannot be an element of a key: 1, 1.0 and True are equal; "
                "name one type, or one type and None"
            )
        return _or_none(_element_admit(inner[0]))
    return key_codec(declared).admit


def _or_none(admit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def admit_or_none(item: Any) -> Any:
        return None if item is None else admit(item)

    return admit_or_none


# Words --------------------------------------------------------------------------------


def _refusal(expected: str, key: Any, fix: str) -> InvalidRecord:
    got = f"{key!r:.80} ({type(key).__name__})"
    return InvalidRecord(f"a key of this store must be {expected}, got {got}; {fix}")


def _name(declared: Any) -> str:
    return (
        declared.__name__
        if isinstance(declared, type) and not get_args(declared)
        else str(declared)
    )


_SCALARS: dict[Any, _Scalar] = {
    str: _Scalar(_admits(str), encode_str, decode_str, encode_all=encode_strs),
    int: _Scalar(_admits(int), encode_int, decode_one(int)),
    float: _Scalar(_admit_float, encode_float, decode_one(float), exact=False),
    bytes: _Scalar(_admits(bytes), encode_bytes, decode_bytes),
    bool: _Scalar(_admits(bool), encode_bool, decode_one(bool)),
    date: _Scalar(_admits(date), encode_date, decode_one(date)),
    datetime: _Scalar(_admit_datetime, encode_datetime, decode_one(datetime), exact=False),
    JsonKey: _Scalar(admit_json, encode_json, json_decoder_of(encode_json), exact=False),
    AsciiJsonKey: _Scalar(
        admit_json, encode_ascii_json, json_decoder_of(encode_ascii_json), exact=False
    ),
    RawKey: _Scalar(admit_raw, bytes, bytes, exact=False),
}
_NAMES = {
    JsonKey: "JSON (UTF-8, as orjson writes it)",
    AsciiJsonKey: "JSON (ASCII, as Python's json writes it)",
    RawKey: "raw bytes",
}
