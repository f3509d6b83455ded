"""Key types as plain data, for recorded declarations of stores and for the wire of queries.

A scalar is its name. A tuple is `["tuple", [types], variadic]`. An element that may be None is
`["optional", type]`. Keys that another framework writes are `json`, `json-ascii` or `raw`, and
never elements of a tuple (`statestore.foreign_keys`).
"""

from __future__ import annotations

import types
from datetime import date, datetime
from typing import Any, Union, get_args, get_origin

from strandline.changelog.errors import InvalidRequest
from strandline.statestore.foreign_keys import AsciiJsonKey, JsonKey, RawKey

_FOREIGN: dict[str, type] = {"json": JsonKey, "json-ascii": AsciiJsonKey, "raw": RawKey}
_SCALARS: dict[str, type] = {
    kind.__name__: kind for kind in (str, int, float, bytes, bool, date, datetime)
} | _FOREIGN
_NAMES = {kind: name for name, kind in _SCALARS.items()}


def key_to_wire(declared: Any) -> Any:
    """Return a declared key type as plain data.

    >>> key_to_wire(tuple[str, int | None])
    ['tuple', ['str', ['optional', 'int']], False]
    """
    declared = getattr(declared, "__supertype__", declared)
    if get_origin(declared) is tuple:
        arguments = get_args(declared)
        variadic = len(arguments) == 2 and arguments[1] is Ellipsis
        named = arguments[:1] if variadic else arguments
        return ["tuple", [key_to_wire(argument) for argument in named], variadic]
    if get_origin(declared) in (Union, types.UnionType):
        [inner] = [argument for argument in get_args(declared) if argument is not type(None)]
        return ["optional", key_to_wire(inner)]
    return _NAMES[declared]


def is_foreign(data: Any) -> bool:
    """Return True if a plain key type is one of another framework's."""
    return isinstance(data, str) and data in _FOREIGN


def key_from_wire(data: Any) -> Any:
    """Return the declared key type of plain data. Raises InvalidRequest if it is not valid.

    >>> key_from_wire(["tuple", ["str", ["optional", "int"]], False])
    tuple[str, int | None]
    """
    try:
        if isinstance(data, str):
            return _SCALARS[data]
        if data[0] == "optional":
            return _element_from_wire(data[1]) | None
        elements = tuple(map(_element_from_wire, data[1]))
        return types.GenericAlias(tuple, (*elements, ...) if data[2] else elements)
    except (LookupError, TypeError) as error:
        raise InvalidRequest(f"{data!r:.80} is no known type of keys") from error


def key_accepts(new: Any, old: Any) -> bool:
    """Return True if every key of the plain type `old` is a key of `new` with the same bytes.

    >>> wider = ["tuple", ["str", ["optional", "int"]], False]
    >>> key_accepts(wider, ["tuple", ["str", "int"], False])
    True
    >>> key_accepts("float", "int")
    False
    """
    if new == old:
        return True
    if isinstance(new, list) and new[0] == "optional":
        return key_accepts(new[1], old[1] if _is(old, "optional") else old)
    if not (_is(new, "tuple") and _is(old, "tuple")):
        return False
    if new[2]:
        return all(key_accepts(new[1][0], element) for element in old[1])
    if old[2] or len(new[1]) != len(old[1]):
        return False
    return all(map(key_accepts, new[1], old[1]))


def _element_from_wire(data: Any) -> Any:
    if is_foreign(data):
        raise LookupError(data)
    return key_from_wire(data)


def _is(data: Any, what: str) -> bool:
    return isinstance(data, list) and data[0] == what
