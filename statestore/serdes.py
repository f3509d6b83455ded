"""Serdes: encoding of values and of topic keys, shared by stores and topics.

A serde converts objects of one type to bytes and back. These are built in:

- MessagePack without a type: dicts, lists, scalars;
- MessagePack of a declared type (dataclass, msgspec.Struct, scalar, annotation): decoding checks
  the type, which may gain fields that have defaults;
- bytes, unchanged;
- the three forms in which Kafka's Java client writes keys: UTF-8, long, double.

`serde=` accepts any object with `dumps` and `loads`.

Both directions raise InvalidRecord. MessagePack ints have at most 64 bits, so a larger int is
written as extension type 1 (two's complement, big-endian).
"""

from __future__ import annotations

import dataclasses
import struct
import types
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, Literal, Protocol, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of
from uuid import UUID

import msgspec

from strandline.changelog.client.keys import canonical
from strandline.changelog.decoding import unchecked_msgpack_decoder
from strandline.changelog.depth import MAX_DEPTH, check_msgpack
from strandline.changelog.errors import UNREADABLE, InvalidConfig, InvalidRecord

T = TypeVar("T")


class Serde(Protocol[T]):
    """Interface that converts objects of one type to bytes and back.

    `loads(dumps(x))` equals `x`. A serde may have these attributes:

        immutable   True if the objects are immutable: a store then decodes each value only once
        identity    text that is recorded with a store, instead of the name of the class: give it one
                    that names the parameters on which the bytes depend
        declared    type of the objects: a store then compares it with the recorded one
    """

    def dumps(self, value: T, /) -> bytes:
        """Encode an object.

        Args:
            value: The object.

        Returns:
            Its bytes.

        Raises:
            InvalidRecord: The object cannot be encoded.
        """
        ...

    def loads(self, data: bytes, /) -> T:
        """Decode an object.

        Args:
            data: Bytes that `dumps` returned.

        Returns:
            The object.

        Raises:
            InvalidRecord: The bytes cannot be decoded.
        """
        ...


def _packed(value: Any, /) -> bytes:
    """Return `value` as MessagePack. Raises InvalidRecord if it cannot be encoded."""
    try:
        encoded = _encode(value)
        if len(encoded) > MAX_DEPTH:
            check_msgpack(encoded)
        return encoded
    except RecursionError as error:
        raise _too_deep(error) from error
    except (TypeError, OverflowError, ValueError) as error:
        return _big_int_or_refuse(value, error)


class MessagePack:
    """MessagePack without a type: dicts, lists, scalars. Tuples are decoded as lists.

    >>> serde = MessagePack()
    >>> serde.loads(serde.dumps({"n": 1, "at": [2, 3]}))
    {'n': 1, 'at': [2, 3]}
    """

    dumps = staticmethod(_packed)

    def loads(self, data: bytes, /) -> Any:
        try:
            if len(data) > MAX_DEPTH:
                check_msgpack(data)
            return _decode(data)
        except UNREADABLE as error:
            raise _undecodable("MessagePack", data, error) from error


class TypedMessagePack(Generic[T]):
    """MessagePack of a declared type.

    >>> serde = TypedMessagePack(int)
    >>> serde.loads(serde.dumps(2**70)) == 2**70
    True
    """

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        try:
            self._decode: Callable[[bytes], T] = unchecked_msgpack_decoder(declared).decode
        except TypeError as error:
            raise InvalidConfig(
                f"{type_name(declared)} cannot be a type of value: {error}; "
                "use a dataclass, a msgspec.Struct, a scalar, or pass serde="
            ) from error
        self._decode_all: Callable[[bytes], list[T]] = unchecked_msgpack_decoder(
            list[declared]
        ).decode

    dumps = staticmethod(_packed)

    def dumps_all(self, values: Sequence[T]) -> list[bytes] | None:
        """Return values of the declared type as `dumps` does, and check the types at once.

        The result is None if one of the values is of another type, or needs a look by itself.

        >>> TypedMessagePack(tuple[str, int]).dumps_all([("a", 1)])
        [b'\\x92\\xa1a\\x01']
        >>> TypedMessagePack(int).dumps_all([1, "a"])
        """
        try:
            encoded = list(map(_encode, values))
            self._loads_all(encoded)
        except _NEEDS_A_LOOK:
            return None
        return encoded

    def _loads_all(self, encoded: list[bytes]) -> list[T]:
        for each in encoded:
            if len(each) > MAX_DEPTH:
                check_msgpack(each)
        return self._decode_all(_array_header(len(encoded)) + b"".join(encoded))

    def loads(self, data: bytes, /) -> T:
        try:
            if len(data) > MAX_DEPTH:
                check_msgpack(data)
            return self._decode(data)
        except UNREADABLE as error:
            if self.declared is int and data[:1] in _EXTENSIONS:
                return MessagePack().loads(data)  # type: ignore[no-any-return]
            raise _undecodable(type_name(self.declared), data, error) from error


def _array_header(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


class Bytes:
    """Bytes, unchanged."""

    def dumps(self, value: bytes | bytearray | memoryview, /) -> bytes:
        if type(value) is bytes:
            return value
        try:
            return bytes(memoryview(value))
        except TypeError as error:
            fix = "encode it first, or declare its type"
            raise _unencodable("bytes", value, fix) from error

    def loads(self, data: bytes, /) -> bytes:
        return data


class Utf8:
    """Strings as Kafka's StringSerializer writes them."""

    def dumps(self, value: str, /) -> bytes:
        try:
            return value.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise _unencodable("str", value, "give text without lone surrogates") from error

    def loads(self, data: bytes, /) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _undecodable("UTF-8", data, error) from error


class Long:
    """Ints as Kafka's LongSerializer writes them: 8 bytes, big-endian, signed."""

    def dumps(self, value: int, /) -> bytes:
        if type(value) is not int:
            raise _unencodable("int", value, "convert it to int first")
        try:
            return _LONG.pack(value)
        except struct.error as error:
            raise _unencodable("int of 64 bits", value, "use str or bytes for it") from error

    def loads(self, data: bytes, /) -> int:
        return int(_unpack(_LONG, "a long (8 bytes)", data))


class Double:
    """Floats as Kafka's DoubleSerializer writes them: 8 bytes, big-endian."""

    def dumps(self, value: float, /) -> bytes:
        if type(value) is not float:
            raise _unencodable("float", value, "convert it to float first")
        return _DOUBLE.pack(value)

    def loads(self, data: bytes, /) -> float:
        return float(_unpack(_DOUBLE, "a double (8 bytes)", data))


class DoubleKey(Double):
    """Floats as keys of a topic: equal ones have the same bytes, so -0.0 is encoded as 0.0."""

    def dumps(self, value: float, /) -> bytes:
        return super().dumps(canonical(value))


class MessagePackKey(MessagePack):
    """MessagePack of keys of a topic, in their canonical form."""

    @staticmethod
    def dumps(value: Any, /) -> bytes:
        encoded = _packed(value)  # refuses what `canonical` could not take apart
        same = canonical(value)
        return encoded if same is value else _packed(same)


class TypedMessagePackKey(TypedMessagePack[T]):
    """MessagePack of keys of a declared type, in their canonical form.

    An int in the place of a float is encoded as that float, because readers decode it so.
    """

    def __init__(self, declared: Any) -> None:
        super().__init__(declared)
        self._are_canonical = _consists_of(declared, _CANONICAL)

    def dumps(self, value: Any, /) -> bytes:
        return _packed(canonical(self.loads(_packed(value))))

    def dumps_all(self, values: Sequence[T]) -> list[bytes] | None:
        """Return keys of the declared type as `dumps` does, and check the types at once.

        The result is None if one of the keys is of another type, or needs a look by itself.

        >>> TypedMessagePackKey(tuple[str, float]).dumps_all([("a", 1)])
        [b'\\x92\\xa1a\\xcb?\\xf0\\x00\\x00\\x00\\x00\\x00\\x00']
        """
        try:
            keys = self._loads_all(list(map(_encode, values)))
            return super().dumps_all(keys if self._are_canonical else list(map(canonical, keys)))
        except _NEEDS_A_LOOK:
            return None


def value_serde(declared: Any = None) -> Serde[Any]:
    """Return the serde of a declared type of values. Raises InvalidConfig for an unusable type.

    None, Any, object, dict and list: MessagePack. bytes: unchanged. An object or class with `dumps`
    and `loads`: itself. Any other type: MessagePack of that type.
    """
    if declared in (None, Any, dict, list, object):
        return MessagePack()
    if declared is bytes:
        return Bytes()
    if callable(getattr(declared, "dumps", None)) and callable(getattr(declared, "loads", None)):
        return declared() if isinstance(declared, type) else declared  # type: ignore[no-any-return]
    return TypedMessagePack(declared)


def topic_key_serde(declared: Any = None) -> Serde[Any]:
    """Return the serde of a topic's keys, which writes the same bytes as Kafka's Java client.

    A key therefore goes to the same partition as with that client. str: UTF-8. bytes: unchanged.
    int: 8 bytes, big-endian. float: a big-endian double. Any other type: as `value_serde`. -0.0
    is encoded as 0.0, where Java's client keeps it, and the entries of dicts and sets have an order.

    >>> topic_key_serde(int).dumps(258)
    b'\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x02'
    """
    simple: dict[Any, Serde[Any]] = {str: Utf8(), int: Long(), float: DoubleKey()}
    try:
        serde = simple.get(declared) or value_serde(declared)
    except TypeError:  # an unhashable object with dumps and loads
        serde = value_serde(declared)
    if type(serde) is MessagePack:
        return MessagePackKey()
    return TypedMessagePackKey(declared) if _has_equal_forms(serde) else serde


def _has_equal_forms(serde: Serde[Any]) -> bool:
    """Return True if equal keys of a declared type of MessagePack may have other bytes."""
    return type(serde) is TypedMessagePack and not _consists_of(serde.declared, _PLAIN)


def _consists_of(declared: Any, kinds: tuple[Any, ...]) -> bool:
    """Return True if a type is one of `kinds`, or a tuple, list or union of such types."""
    if get_origin(declared) in _ORDERED:
        return all(_consists_of(each, kinds) for each in get_args(declared))
    return declared in kinds


def is_immutable(declared: Any) -> bool:
    """Return True if objects of a declared type are immutable, so that readers may share them.

    >>> is_immutable(tuple[int, str]), is_immutable(list[int])
    (True, False)
    """
    return _is_immutable(declared, set())


def _is_immutable(declared: Any, seen: set[Any]) -> bool:
    origin = get_origin(declared)
    if declared in _IMMUTABLE or origin is Literal:
        return True
    if origin in (tuple, frozenset, Union, types.UnionType):
        inner = [argument for argument in get_args(declared) if argument is not Ellipsis]
        return all(_is_immutable(argument, seen) for argument in inner)
    if not isinstance(declared, type):
        return False
    if issubclass(declared, Enum):
        return True
    if declared in seen:
        return True
    if not _is_frozen(declared):
        return False
    seen.add(declared)
    return all(_is_immutable(hint, seen) for hint in _field_hints(declared))


def _is_frozen(declared: type) -> bool:
    if issubclass(declared, msgspec.Struct):
        return declared.__struct_config__.frozen
    if dataclasses.is_dataclass(declared):
        return bool(declared.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return issubclass(declared, tuple) and hasattr(declared, "_fields")


def _field_hints(declared: type) -> list[Any]:
    try:
        return list(hints_of(declared).values())
    except NameError:
        return [list]  # a forward reference that cannot be looked up may be anything


def _big_int_or_refuse(value: object, error: Exception) -> bytes:
    if type(value) is not int:
        raise _unencodable("what MessagePack can hold", value, str(error)) from error
    data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return _encode(msgspec.msgpack.Ext(_BIG_INT, data))


def _decode_extension(code: int, data: memoryview) -> int:
    if code != _BIG_INT:
        raise ValueError(f"unknown extension {code}")
    return int.from_bytes(data, "big", signed=True)


def _unpack(layout: struct.Struct, what: str, data: bytes) -> Any:
    try:
        return layout.unpack(data)[0]
    except struct.error as error:
        raise _undecodable(what, data, error) from error


def _unencodable(expected: str, value: object, fix: str) -> InvalidRecord:
    got = f"{value!r:.80} ({type(value).__name__})"
    return InvalidRecord(f"cannot encode a value: expected {expected}, got {got}; {fix}")


def _too_deep(error: RecursionError) -> InvalidRecord:
    return InvalidRecord(f"cannot encode a value: {error}; nest it less deeply")


def _undecodable(expected: str, data: bytes, error: Exception) -> InvalidRecord:
    return InvalidRecord(
        f"cannot decode {len(data)} bytes {data!r:.80} as {expected}: {error}; "
        "declare the type (or serde) they were written with"
    )


def type_name(declared: Any) -> str:
    """Return the name of a declared type, as in the code that declares it."""
    return declared.__name__ if isinstance(declared, type) else str(declared)


_ORDERED = (tuple, list, Union, types.UnionType)
"""Generic types whose values have one form if their items have."""
_PLAIN = (int, str, bytes, bool, type(None), None, Ellipsis)
"""Types whose equal values have the same bytes."""
_CANONICAL = (*_PLAIN, datetime)
"""Types whose decoded values `canonical` returns as they are."""
_LONG, _DOUBLE = struct.Struct(">q"), struct.Struct(">d")
_BIG_INT = 1
_NEEDS_A_LOOK = (*UNREADABLE, RecursionError, TypeError, OverflowError, ValueError)
"""Errors of values that are encoded together, after which each is encoded by itself."""
# The first byte of a MessagePack extension: ext 8/16/32 and fixext 1 … 16.
_EXTENSIONS = tuple(bytes((byte,)) for byte in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8))
_IMMUTABLE = (
    *(int, str, float, bytes, bool, type(None), None),
    *(datetime, date, time, timedelta, Decimal, UUID),
)
_encode = msgspec.msgpack.Encoder().encode
_decode = unchecked_msgpack_decoder(Any, ext_hook=_decode_extension).decode
