"""Typed decoders of JSON and MessagePack, built one at a time.

The first use of a Struct by msgspec fills in what the type is, without a lock. Two threads that do
so at the same time crash the process (msgspec 0.22; see docs/upstream.md). So every decoder is built
here, under one lock. Using a decoder that is built is safe on any thread.
`tests/test_architecture.py` forbids the other ways.
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
    global _building  # noqa: PLW0603 - a thread of the parent may have held it
    _building = threading.Lock()


os.register_at_fork(after_in_child=_unlock_after_fork)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder of JSON to `kind`. Raises TypeError if msgspec does not support that type."""
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
    """A decoder of MessagePack to `kind`; the hooks are msgspec's. Raises TypeError as `json_decoder`."""
    with _building:
        return msgspec.msgpack.Decoder(kind, dec_hook=dec_hook, ext_hook=ext_hook)


def converter(kind: type[T], *, strict: bool = True) -> Callable[[Any], T]:
    """A function from plain objects to `kind`, as `msgspec.convert`. Raises TypeError as `json_decoder`."""
    json_decoder(kind)  # fills in what the type is

    def convert(value: Any) -> T:
        return msgspec.convert(value, kind, strict=strict)

    return convert


@cache
def known_json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of JSON to `kind`, built at the first call."""
    return json_decoder(kind)
