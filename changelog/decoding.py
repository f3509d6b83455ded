"""Decoders of JSON and MessagePack, which are built one at a time and check the depth first.

The first use of a Struct by msgspec initializes information about the type, without a lock. If two
threads do so at the same time, the process crashes (msgspec 0.22; see docs/upstream.md). Therefore
all decoders are built here, under one lock. Any thread may use a decoder once it is built.

Decoding recurses, also into fields that a type does not have. So a value from a disk, a peer or a
user that is nested deep enough ends the process, and its depth is checked first
(`changelog.depth`). `tests/test_architecture.py` forbids decoding with msgspec elsewhere, and
decoders without the check in modules that do not check the depth themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar, overload

import msgspec

from strandline.changelog.depth import check_json, check_msgpack
from strandline.changelog.forks import ForkSafeLock

T = TypeVar("T")

_building = ForkSafeLock(threading.Lock)


class CheckedDecoder(Generic[T]):
    """Decoder that checks how deep the data is nested before it decodes them. Thread-safe."""

    def __init__(self, check: Callable[[Any], None], decode: Callable[[Any], T]) -> None:
        self._check = check
        self._decode = decode

    def decode(self, data: bytes | bytearray | memoryview | str) -> T:
        """Return the decoded value. Raises one of `changelog.errors.UNREADABLE`."""
        self._check(data)
        return self._decode(data)


def json_decoder(kind: type[T]) -> CheckedDecoder[T]:
    """Return a JSON decoder for `kind`. Raises TypeError if msgspec does not support the type."""
    return CheckedDecoder(check_json, unchecked_json_decoder(kind).decode)


def unchecked_json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return what `json_decoder` does, for a module that checks the depth of many values itself."""
    with _building:
        return msgspec.json.Decoder(kind)


def msgpack_decoder(kind: type[T]) -> CheckedDecoder[T]:
    """Return a MessagePack decoder for `kind`. Raises TypeError if msgspec does not support it."""
    return CheckedDecoder(check_msgpack, unchecked_msgpack_decoder(kind).decode)


@overload
def unchecked_msgpack_decoder(
    kind: type[T],
    *,
    dec_hook: Callable[[type, Any], Any] | None = ...,
    ext_hook: Callable[[int, memoryview], Any] | None = ...,
) -> msgspec.msgpack.Decoder[T]: ...
@overload
def unchecked_msgpack_decoder(
    kind: Any,
    *,
    dec_hook: Callable[[type, Any], Any] | None = ...,
    ext_hook: Callable[[int, memoryview], Any] | None = ...,
) -> msgspec.msgpack.Decoder[Any]: ...
def unchecked_msgpack_decoder(
    kind: Any,
    *,
    dec_hook: Callable[[type, Any], Any] | None = None,
    ext_hook: Callable[[int, memoryview], Any] | None = None,
) -> msgspec.msgpack.Decoder[Any]:
    """Return what `msgpack_decoder` does, for a module that checks the depth itself.

    The hooks are msgspec's. Raises TypeError if msgspec does not support the type.
    """
    with _building:
        return msgspec.msgpack.Decoder(kind, dec_hook=dec_hook, ext_hook=ext_hook)


def json_value(data: bytes | bytearray | memoryview | str) -> Any:
    """Return the plain value of JSON. Raises one of `changelog.errors.UNREADABLE`."""
    check_json(data)
    return msgspec.json.decode(data)


def msgpack_value(data: bytes | bytearray | memoryview) -> Any:
    """Return the plain value of MessagePack. Raises one of `changelog.errors.UNREADABLE`."""
    check_msgpack(data)
    return msgspec.msgpack.decode(data)


def converter(kind: type[T], *, strict: bool = True) -> Callable[[Any], T]:
    """Return a function that converts plain objects to `kind`, as `msgspec.convert`.

    Raises TypeError if msgspec does not support the type.
    """
    unchecked_json_decoder(kind)  # initializes msgspec's information about the type, under the lock

    def convert(value: Any) -> T:
        return msgspec.convert(value, kind, strict=strict)

    return convert


@cache
def known_json_decoder(kind: Any) -> CheckedDecoder[Any]:
    """Return the JSON decoder for `kind`, which is built by the first call and cached."""
    return json_decoder(kind)
