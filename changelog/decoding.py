"""Typed decoders of JSON and MessagePack, built one at a time.

The first use of a Struct by msgspec initializes information about the type, without a lock. If two
threads do so at the same time, the process crashes (msgspec 0.22; see docs/upstream.md). Therefore
all decoders are built here, under one lock. Any thread may use a decoder once it is built.
`tests/test_architecture.py` forbids building decoders elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_building = threading.Lock()


def _unlock_after_fork() -> None:
    # A thread of the parent may have held the lock at the fork.
    global _building  # noqa: PLW0603
    _building = threading.Lock()


os.register_at_fork(after_in_child=_unlock_after_fork)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a JSON decoder for `kind`. Raises TypeError if msgspec does not support the type."""
    with _building:
        return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(
    kind: type[T],
    *,
    dec_hook: Callable[[type, Any], Any] | None = ...,
    ext_hook: Callable[[int, memoryview], Any] | None = ...,
) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(
    kind: Any,
    *,
    dec_hook: Callable[[type, Any], Any] | None = ...,
    ext_hook: Callable[[int, memoryview], Any] | None = ...,
) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(
    kind: Any,
    *,
    dec_hook: Callable[[type, Any], Any] | None = None,
    ext_hook: Callable[[int, memoryview], Any] | None = None,
) -> msgspec.msgpack.Decoder[Any]:
    """Return a MessagePack decoder for `kind`; the hooks are msgspec's.

    Raises TypeError if msgspec does not support the type.
    """
    with _building:
        return msgspec.msgpack.Decoder(kind, dec_hook=dec_hook, ext_hook=ext_hook)


def converter(kind: type[T], *, strict: bool = True) -> Callable[[Any], T]:
    """Return a function that converts plain objects to `kind`, as `msgspec.convert`.

    Raises TypeError if msgspec does not support the type.
    """
    json_decoder(kind)  # initializes msgspec's information about the type, under the lock

    def convert(value: Any) -> T:
        return msgspec.convert(value, kind, strict=strict)

    return convert


@cache
def known_json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the JSON decoder for `kind`, which is built by the first call and cached."""
    return json_decoder(kind)
