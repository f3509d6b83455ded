"""Value types as plain data, and the rule that decides which type can read the values of another.

A description contains the structure of a type's MessagePack: the structure of fields, not the names
of classes. It is recorded with a store's changelog, so that the type declared by another program
can be compared with the stored values.

A node is a dict with `is`: a scalar's name ("int", "str", "datetime" …), "any", "none", "list",
"tuple", "dict", "union", "literal", "custom", or "object" for a class with fields. Objects are in a
separate table, because a class may contain itself.

`unreadable` applies the rule. A new type can read the values of an old one if each value decodes
and nothing of it is dropped:

- fields: all old fields exist and have types that read them; new fields have defaults;
- unions and literals: may gain members; every type may become Any;
- collections: as their items; list, set and tuple[T, ...] may become list or tuple[T, ...];
- limits (`msgspec.Meta`): may be removed, not added;
- everything else must be the same. An int may not become a float, which changes ints over 2**53.

The default of a field that stored values may lack must not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from strandline.changelog.decoding import json_value

Node = dict[str, Any]

MISSING = object()


class TypeDescription(msgspec.Struct, omit_defaults=True):
    """Description of a value type: its root node, and the classes that it contains."""

    root: Node
    """Node of the type itself."""
    objects: dict[str, Node] = {}
    """Nodes of the classes with fields, by name."""


def described_type(declared: Any) -> TypeDescription:
    """Return the description of a type that msgspec can decode.

    >>> described_type(list[int]).root
    {'is': 'list', 'items': {'is': 'int'}}
    """
    try:
        return _Describing().described(declared)
    except (TypeError, NameError):  # a forward reference that cannot be looked up
        return TypeDescription({"is": "custom", "name": str(declared)})


class _Describing:
    """Builds the description of one type."""

    def __init__(self) -> None:
        self._objects: dict[str, Node] = {}
        self._names: dict[int, str] = {}
        self._seen: list[Any] = []  # kept alive, because they are known by id

    def described(self, declared: Any) -> TypeDescription:
        return TypeDescription(self._node(inspect.type_info(declared)), self._objects)

    def _node(self, info: Any) -> Node:
        if isinstance(info, inspect.Metadata):
            return self._node(info.type)
        if isinstance(info, _OBJECTS):
            return {"is": "object", "name": self._object(info)}
        if isinstance(info, inspect.UnionType):
            return {"is": "union", "of": [self._node(one) for one in info.types]}
        if isinstance(info, inspect.LiteralType):
            return {"is": "literal", "values": sorted(info.values, key=repr)}
        if isinstance(info, inspect.EnumType):
            return {"is": "literal", "values": sorted((one.value for one in info.cls), key=repr)}
        if isinstance(info, inspect.DictType):
            both = {"keys": self._node(info.key_type), "values": self._node(info.value_type)}
            return {"is": "dict", **both, **_limits(info)}
        if isinstance(info, inspect.TupleType):
            return {"is": "tuple", "items": [self._node(one) for one in info.item_types]}
        if isinstance(info, inspect.CustomType):
            return {"is": "custom", "name": info.cls.__qualname__}
        name = _NAMES.get(type(info)) or type(info).__name__.removesuffix("Type").lower()
        items = getattr(info, "item_type", None)
        more = {} if items is None else {"items": self._node(items)}
        return {"is": name, **more, **_limits(info)}

    def _object(self, info: Any) -> str:
        known = self._names.get(id(info))
        if known is not None:
            return known
        name: str = info.cls.__qualname__
        if name in self._objects:
            name = f"{name} ({len(self._objects)})"
        self._names[id(info)] = name
        self._seen.append(info)
        config = getattr(info.cls, "__struct_config__", None)
        by_place = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
        node: Node = {"by_place": True} if by_place else {}
        if getattr(info, "tag", None) is not None:
            node["tag"] = [info.tag_field, info.tag]
        self._objects[name] = node
        may_lack = bool(getattr(config, "omit_defaults", False))
        may_lack = may_lack or isinstance(info, inspect.TypedDictType)
        node["fields"] = {one.encode_name: self._field(one, may_lack) for one in info.fields}
        return name

    def _field(self, field: Any, may_lack: bool) -> Node:
        node: Node = {"type": self._node(field.type)}
        if field.required:
            return node
        default: Any = None
        if field.default is not msgspec.NODEFAULT:
            default = _plain(field.default)
        elif field.default_factory is not msgspec.NODEFAULT:
            default = {"factory": getattr(field.default_factory, "__qualname__", "")}
        return {**node, "default": default, **({"may_lack": True} if may_lack else {})}


def unreadable(new: TypeDescription, old: TypeDescription, *, dropping: bool = False) -> str | None:
    """Return why some values of the type `old` cannot be read as `new`; None if all can.

    With `dropping`, `new` may lack fields of `old`, which is safe for a reader that never writes.
    Fields of `new` that values of `old` lack are marked in it (`may_lack`), because their defaults
    must not change from now on.

    >>> unreadable(described_type(int | None), described_type(int)) is None
    True
    >>> unreadable(described_type(str), described_type(int))
    'a value is int, and is declared as str'
    """
    return _Comparing(new.objects, old.objects, dropping).mismatch(new.root, old.root, "a value")


class _Comparing:
    """Compares two descriptions. Each pair of classes is compared once: they may be recursive."""

    def __init__(self, new: Mapping[str, Node], old: Mapping[str, Node], dropping: bool) -> None:
        self._dropping = dropping
        self._new = new
        self._old = old
        self._compared: set[tuple[str, str]] = set()

    def mismatch(self, new: Node, old: Node, where: str) -> str | None:
        """Return why `new` cannot read `old`; None if it can. Messages call the node `where`."""
        if new["is"] in ("any", "raw"):
            return None
        if old["is"] == "union":
            return next(filter(None, (self.mismatch(new, one, where) for one in old["of"])), None)
        if new["is"] == "union":
            reasons = [self.mismatch(one, old, where) for one in new["of"]]
            return None if None in reasons else self._differs(new, old, where)
        if old["is"] == "literal":
            fits = all(_of_literal(new, value) for value in old["values"])
            return None if fits else self._differs(new, old, where)
        if new["is"] in _LISTS and old["is"] in _ARRAYS:
            return self._items(new, old, where)
        if new["is"] != old["is"] or new["is"] == "literal":
            return self._differs(new, old, where)
        if new["is"] == "object":
            return self._objects(new["name"], old["name"], where)
        return self._alike(new, old, where)

    def _alike(self, new: Node, old: Node, where: str) -> str | None:
        if new["is"] == "dict":
            inner = self.mismatch(new["keys"], old["keys"], f"a key in {where}")
            inner = inner or self.mismatch(new["values"], old["values"], f"an entry of {where}")
            return inner or self._limited(new, old, where)
        if new["is"] == "tuple":
            if len(new["items"]) != len(old["items"]):
                return self._differs(new, old, where)
            pairs = zip(new["items"], old["items"], strict=True)
            return self._first(self.mismatch(*pair, f"an item of {where}") for pair in pairs)
        if "items" in new:
            return self._items(new, old, where)
        if new.get("name") != old.get("name"):
            return self._differs(new, old, where)
        return self._limited(new, old, where)

    def _items(self, new: Node, old: Node, where: str) -> str | None:
        olds: Sequence[Node] = old["items"] if old["is"] == "tuple" else [old["items"]]
        inner = (self.mismatch(new["items"], one, f"an item of {where}") for one in olds)
        return self._first(inner) or self._limited(new, old, where)

    def _limited(self, new: Node, old: Node, where: str) -> str | None:
        limits = new.get("limits", {})
        if any(old.get("limits", {}).get(name, MISSING) != limits[name] for name in limits):
            return f"{where} has other limits than before: {limits}"
        return None

    def _objects(self, new_name: str, old_name: str, where: str) -> str | None:
        if (new_name, old_name) in self._compared:
            return None
        self._compared.add((new_name, old_name))
        new, old = self._new[new_name], self._old[old_name]
        if any(new.get(name) != old.get(name) for name in ("tag", "by_place")):
            return f"{where} is written in another way: {new_name} has another tag, or other fields"
        if new.get("by_place") and list(new["fields"])[: len(old["fields"])] != list(old["fields"]):
            return f"the fields of {where} are {list(old['fields'])}, in that order"
        return self._first(self._old_fields(new, old)) or self._first(self._new_fields(new, old))

    def _old_fields(self, new: Node, old: Node) -> Iterator[str | None]:
        for name, was in old["fields"].items():
            now = new["fields"].get(name)
            if now is None and self._dropping:
                continue
            if now is None:
                yield f"field {name!r} is not declared any more"
                continue
            yield self.mismatch(now["type"], was["type"], f"field {name!r}")
            if "default" in was and "default" not in now:
                yield f"field {name!r} has no default any more, and values may lack it"
            if was.get("may_lack"):
                now["may_lack"] = True
                if now.get("default") != was.get("default"):
                    yield f"field {name!r} has another default, and values lack it"

    def _new_fields(self, new: Node, old: Node) -> Iterator[str | None]:
        for name, now in new["fields"].items():
            if name in old["fields"]:
                continue
            if "default" not in now:
                yield f"field {name!r} is new and has no default"
            now["may_lack"] = True

    def _differs(self, new: Node, old: Node, where: str) -> str:
        return f"{where} is {shown(old)}, and is declared as {shown(new)}"

    @staticmethod
    def _first(reasons: Iterator[str | None]) -> str | None:
        return next(filter(None, reasons), None)


def is_well_formed(description: TypeDescription) -> bool:
    """Return True if a decoded description is valid, so that the functions here can traverse it."""
    fields = (node.get("fields") for node in description.objects.values())
    try:
        nodes = [field["type"] for each in fields for field in each.values()]  # type: ignore[union-attr]
        return all(_is_node(node, description.objects) for node in [description.root, *nodes])
    except (AttributeError, KeyError, TypeError, RecursionError):
        return False


def _is_node(node: Node, objects: Mapping[str, Node]) -> bool:
    what = node["is"]
    if what == "object":
        return node["name"] in objects
    if what == "literal":
        return isinstance(node["values"], list)
    inner: list[Node] = [node["items"]] if "items" in node else []
    if what in ("union", "tuple"):
        inner = node["of" if what == "union" else "items"]
    elif what == "dict":
        inner = [node["keys"], node["values"]]
    is_whole = isinstance(what, str) and (what not in _ARRAYS or "items" in node)
    return is_whole and all(_is_node(one, objects) for one in inner)


def misfit(description: TypeDescription, value: Any) -> str | None:
    """Return why decoded MessagePack data is no value of a type; None if it is one.

    >>> misfit(described_type(dict[str, int]), {"a": "x"})
    "an entry is 'x', not int"
    """
    return _misfit(description.root, description.objects, value, "it")


def _misfit(node: Node, objects: Mapping[str, Node], value: Any, where: str) -> str | None:
    what = node["is"]
    if what == "union":
        reasons = [_misfit(one, objects, value, where) for one in node["of"]]
        return None if None in reasons else f"{where} is {value!r:.80}, not {shown(node)}"
    if what == "literal":
        return None if value in node["values"] else f"{where} is {value!r:.80}, not {shown(node)}"
    if what == "object":
        return _object_misfit(objects[node["name"]], objects, value, where)
    kinds = _PLAIN.get(what)
    if kinds is not None and type(value) not in kinds:
        return f"{where} is {value!r:.80}, not {shown(node)}"
    inner: Iterator[str | None] = iter(())
    if what == "dict":
        inner = (_misfit(node["values"], objects, one, "an entry") for one in value.values())
    elif what == "tuple":
        if len(value) != len(node["items"]):
            return f"{where} has {len(value)} items, not {len(node['items'])}"
        pairs = zip(node["items"], value, strict=True)
        inner = (_misfit(one, objects, item, "an item") for one, item in pairs)
    elif "items" in node:
        inner = (_misfit(node["items"], objects, item, "an item") for item in value)
    return next(filter(None, inner), None)


def _object_misfit(node: Node, objects: Mapping[str, Node], value: Any, where: str) -> str | None:
    tag = node.get("tag")
    if node.get("by_place"):
        if type(value) is not list:
            return f"{where} is {value!r:.80}, not a list of fields"
        value = dict(zip(node["fields"], value[1:] if tag else value, strict=False))
    if type(value) is not dict:
        return f"{where} is {value!r:.80}, not a map of fields"
    for name, field in node["fields"].items():
        if name in value:
            reason = _misfit(field["type"], objects, value[name], f"field {name!r}")
            if reason:
                return reason
        elif "default" not in field:
            return f"field {name!r} is missing"
    return None


def shown(node: Node) -> str:
    """Return a node as a type expression, for messages.

    >>> shown(described_type(dict[str, int | None]).root)
    'dict[str, int | None]'
    """
    what = node["is"]
    if what == "union":
        return " | ".join(map(shown, node["of"]))
    if what == "literal":
        return f"Literal[{', '.join(map(repr, node['values']))}]"
    if what == "dict":
        return f"dict[{shown(node['keys'])}, {shown(node['values'])}]"
    if what == "tuple":
        return f"tuple[{', '.join(map(shown, node['items']))}]"
    if what in ("object", "custom"):
        return str(node["name"])
    if "items" in node:
        return f"{what}[{shown(node['items'])}]".replace("vartuple[", "tuple[..., ")
    return str({"none": "None", "any": "Any"}.get(what, what))


def _of_literal(new: Node, value: Any) -> bool:
    if new["is"] == "literal":
        return value in new["values"]
    return new["is"] == type(value).__name__ and not new.get("limits")


def _limits(info: Any) -> Node:
    names = (name for name in _LIMITS if getattr(info, name, None) is not None)
    limits = {name: getattr(info, name) for name in names}
    return {"limits": limits} if limits else {}


def _plain(value: Any) -> Any:
    """Return a default in its JSON form; the `repr` of an object that has none."""
    try:
        return json_value(msgspec.json.encode(value))
    except (TypeError, RecursionError, msgspec.MsgspecError):
        return repr(value)


_OBJECTS = (
    inspect.StructType,
    inspect.DataclassType,
    inspect.TypedDictType,
    inspect.NamedTupleType,
)
_NAMES: dict[type, str] = {inspect.VarTupleType: "vartuple", inspect.FrozenSetType: "set"}
_LISTS = ("list", "vartuple")
_ARRAYS = ("list", "vartuple", "set", "tuple")
_LIMITS = (
    *("gt", "ge", "lt", "le", "multiple_of"),
    *("min_length", "max_length", "pattern", "tz"),
)
_PLAIN: dict[str, tuple[type, ...]] = {
    "none": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bytes": (bytes,),
    "dict": (dict,),
    **dict.fromkeys(("list", "vartuple", "tuple", "set"), (list,)),
}
