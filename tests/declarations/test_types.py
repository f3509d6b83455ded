"""Compatibility of types: which type can read the values of another, and how types are recorded."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from strandline.changelog.errors import CorruptLog, FutureFormat, InvalidRequest
from strandline.framework.formats.json import JsonSerde
from strandline.statestore import StoreSpec, declaration
from strandline.statestore.declaration import Declaration, compare, declaration_of, undeclared
from strandline.statestore.foreign_keys import AsciiJsonKey, JsonKey, RawKey
from strandline.statestore.json_values import Json
from strandline.statestore.key_types import key_accepts, key_from_wire, key_to_wire
from strandline.statestore.serdes import TypedMessagePack
from strandline.statestore.value_types import described_type, misfit, unreadable


class Struct(msgspec.Struct):
    n: int


class WithDefault(msgspec.Struct):
    n: int
    more: str = "x"


class WithoutDefault(msgspec.Struct):
    n: int
    more: str


class Renamed(msgspec.Struct, rename={"m": "n"}):
    m: int


class Tagged(msgspec.Struct, tag="t"):
    n: int


class Placed(msgspec.Struct, array_like=True):
    n: int


class PlacedMore(msgspec.Struct, array_like=True):
    n: int
    more: int = 0


class PlacedBefore(msgspec.Struct, array_like=True):
    more: int = 0
    n: int = 0


class Sparse(msgspec.Struct, omit_defaults=True):
    n: int = 1


class SparseOther(msgspec.Struct, omit_defaults=True):
    n: int = 2


class Bounded(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=0)]


@dataclass
class Data:
    n: int


@dataclass
class Tree:
    n: int
    parts: list[Tree] = field(default_factory=list)


@dataclass
class TaggedTree:
    n: int
    parts: list[TaggedTree] = field(default_factory=list)
    tag: str | None = None


class Map(TypedDict):
    n: int


class Partial(TypedDict):
    n: NotRequired[int]


class Pair(NamedTuple):
    n: int


class Colour(enum.Enum):
    RED = "red"


class Colours(enum.Enum):
    RED = "red"
    BLUE = "blue"


READABLE = [
    (int, int),
    (int, int | None),
    (int, int | str),
    (int | str, int | str | None),
    (Literal["a"], Literal["a", "b"]),
    (Literal["a", "b"], str),
    (Colour, Colours),
    (Colour, str),
    (dict[str, int], Any),
    (dict[str, int], dict[str, int | None]),
    (list[int], list[int | str]),
    (set[int], list[int]),
    (set[int], frozenset[int]),
    (tuple[int, str], list[int | str]),
    (tuple[int, int], tuple[int, ...]),
    (tuple[int, str], tuple[int | None, str]),
    (Struct, Data),
    (Struct, Map),
    (Struct, Renamed),
    (Struct, WithDefault),
    (Map, Partial),
    (Placed, PlacedMore),
    (Placed, Pair),
    (Tree, TaggedTree),
    (list[Struct], list[WithDefault]),
    (Bounded, Struct),
    (datetime, datetime | None),
]
UNREADABLE = [
    (int, str, "int, and is declared as str"),
    (int, float, "int, and is declared as float"),
    (int, bool, "bool"),
    (bool, int, "bool"),
    (int | None, int, "None"),
    (str, Literal["a"], "Literal"),
    (Literal["a", "b"], Literal["a"], "Literal"),
    (Colours, Colour, "'blue'"),
    (Literal[1], str, "Literal"),
    (Any, int, "Any"),
    (list[int], set[int], "set"),
    (list[int | str], list[int], "an item of a value is str"),
    (tuple[int, int], tuple[int, int, int], "tuple"),
    (dict[str, int], dict[str, str], "an entry"),
    (dict[str, int], Struct, "Struct"),
    (Struct, dict[str, int], "Struct"),
    (WithDefault, Struct, "field 'more' is not declared"),
    (Struct, WithoutDefault, "field 'more' is new and has no default"),
    (Partial, Map, "field 'n' has no default"),
    (Struct, Tagged, "another tag"),
    (Struct, Placed, "another tag, or other fields"),
    (Placed, PlacedBefore, "in that order"),
    (Sparse, SparseOther, "field 'n' has another default"),
    (Struct, Bounded, "limits"),
    (TaggedTree, Tree, "field 'tag'"),
]


def samples(kind: Any) -> list[Any]:
    """Return some values of a type."""
    by_type: dict[Any, list[Any]] = {
        int: [0, -(2**60)],
        dict[str, int]: [{"a": 1}],
        list[int]: [[], [1, 2]],
        tuple[int, str]: [(1, "a")],
        tuple[int, int]: [(1, 2)],
        set[int]: [{1, 2}],
        Struct: [Struct(1)],
        Placed: [Placed(1)],
        Tree: [Tree(1, [Tree(2)])],
        Bounded: [Bounded(3)],
        Colour: [Colour.RED],
        list[Struct]: [[Struct(1)]],
        Map: [{"n": 1}],
    }
    return by_type.get(kind, [])


@pytest.mark.parametrize(("old", "new"), READABLE)
def test_a_wider_type_reads_everything(old: Any, new: Any) -> None:
    assert unreadable(described_type(new), described_type(old)) is None
    for value in samples(old):
        TypedMessagePack(new).loads(TypedMessagePack(old).dumps(value))


@pytest.mark.parametrize(("old", "new", "said"), UNREADABLE)
def test_any_other_type_is_refused_with_the_reason(old: Any, new: Any, said: str) -> None:
    reason = unreadable(described_type(new), described_type(old))
    assert reason is not None
    assert said in reason


@pytest.mark.parametrize("kind", [one for one, _ in READABLE] + [one for one, *_ in UNREADABLE])
def test_a_type_reads_itself_and_is_restored_from_its_record(kind: Any) -> None:
    declared = declaration_of(StoreSpec("x", value=kind))
    read = Declaration.from_bytes(declared.to_bytes())
    assert read == declared
    assert compare(read, declared, can_upgrade=False).kind == "same"


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        (int, 1, True),
        (int, "1", False),
        (float, 1, True),
        (Struct, {"n": 1}, True),
        (Struct, {}, False),
        (Struct, [1], False),
        (WithDefault, {"n": 1}, True),
        (Placed, [1], True),
        (Placed, {"n": 1}, False),
        (Colour, "red", True),
        (Colour, "green", False),
        (Tree, {"n": 1, "parts": [{"n": "x"}]}, False),
        (int | None, None, True),
        (tuple[int, str], [1], False),
        (list[int], [1, "x"], False),
        (Any, object, True),
    ],
)
def test_plain_data_fits_a_type_or_not(kind: Any, value: Any, *, fits: bool) -> None:
    assert (misfit(described_type(kind), value) is None) == fits


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (tuple[str, int], tuple[str, int | None]),
        (tuple[str, str], tuple[str, ...]),
        (tuple[tuple[str, int], int], tuple[tuple[str, int | None], int]),
    ],
)
def test_keys_may_become_wider_inside_of_tuples(old: Any, new: Any) -> None:
    assert key_accepts(key_to_wire(new), key_to_wire(old))
    assert not key_accepts(key_to_wire(old), key_to_wire(new))
    assert key_from_wire(key_to_wire(new)) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (str, bytes),
        (int, float),
        (bool, int),
        (str, tuple[str]),
        (tuple[str, int], tuple[str, int, int]),
        (tuple[str, int], tuple[str]),
        (tuple[str, ...], tuple[str, str]),
        (tuple[int, ...], tuple[str, ...]),
    ],
)
def test_other_keys_are_refused(old: Any, new: Any) -> None:
    change = compare(
        declaration_of(StoreSpec("x", key=old, value=int)),
        declaration_of(StoreSpec("x", key=new, value=int)),
        can_upgrade=True,
    )
    assert change.kind == "refused", "an upgrade is of values, not of keys"


def test_the_default_of_a_field_that_values_lack_must_stay() -> None:
    """The default of a field that all values have may change, because it is never read."""

    class Other(msgspec.Struct):
        n: int
        more: str = "y"

    stored = declaration_of(StoreSpec("x", value=Struct))
    wider = compare(stored, declaration_of(StoreSpec("x", value=WithDefault)), can_upgrade=False)
    assert wider.kind == "wider"
    changed = declaration_of(StoreSpec("x", value=Other))
    assert compare(wider.becomes, changed, can_upgrade=False).kind == "refused"
    always = declaration_of(StoreSpec("x", value=WithDefault))
    assert compare(always, changed, can_upgrade=False).kind == "wider"


@pytest.mark.parametrize(
    ("stored", "declared", "kind", "expiry"),
    [
        ({"value": int}, {"value": int, "ttl_ms": 9}, "wider", "marked"),
        ({"value": int, "ttl_ms": 9}, {"value": int}, "wider", "marked"),
        ({"value": bytes}, {"value": bytes, "ttl_ms": 9}, "rewrite", "always"),
        ({"value": bytes, "ttl_ms": 9}, {"value": bytes}, "wider", "always"),
        ({"value": bytes, "ttl_ms": 9}, {"value": bytes, "ttl_ms": 8}, "wider", "always"),
        ({"value": bytes}, {"value": bytes}, "same", "none"),
    ],
)
def test_the_expiry_mark_of_values_follows_the_declaration(
    stored: Any, declared: Any, kind: str, expiry: str
) -> None:
    change = compare(
        declaration_of(StoreSpec("x", **stored)),
        declaration_of(StoreSpec("x", **declared)),
        can_upgrade=False,
    )
    assert (change.kind, change.becomes.expiry) == (kind, expiry)


def test_values_from_before_declarations_mark_an_expiry_by_their_first_byte() -> None:
    ages = declaration_of(StoreSpec("x", value=bytes, ttl_ms=9))
    assert undeclared(ages).expiry == "marked"
    assert compare(undeclared(ages), ages, can_upgrade=False).kind == "rewrite"
    assert undeclared(declaration_of(StoreSpec("x", value=int))).expiry == "marked"


class Text:
    def dumps(self, value: str, /) -> bytes:
        return value.encode()

    def loads(self, data: bytes, /) -> str:
        return data.decode()


class Text2(Text):
    identity = "Text"


def test_a_serde_is_known_by_its_name_or_its_identity() -> None:
    stored = declaration_of(StoreSpec("x", value=Text()))
    assert stored.serde == "Text"
    assert compare(stored, declaration_of(StoreSpec("x", value=Text2)), can_upgrade=False).kind == (
        "same"
    )
    other = declaration_of(StoreSpec("x", value=bytes))
    assert compare(stored, other, can_upgrade=False).kind == "refused"


def test_the_type_of_a_serde_is_compared_as_that_of_other_values() -> None:
    def declared(kind: Any) -> Declaration:
        return declaration_of(StoreSpec("x", value=JsonSerde(kind)))

    stored = declared(Fields)
    assert compare(stored, declared(Fields), can_upgrade=False).kind == "same"
    wider = compare(stored, declared(MoreFields), can_upgrade=False)
    assert wider.kind == "wider"
    assert compare(wider.becomes, declared(MoreFields), can_upgrade=False).kind == "same"
    back = compare(wider.becomes, declared(Fields), can_upgrade=False)
    assert (back.kind, back.reasons) == ("refused", ["field 'note' is not declared any more"])
    other = compare(stored, declared(str), can_upgrade=False)
    assert other.kind == "refused"
    assert "declared as str" in other.reasons[0]
    by_name = compare(stored, declaration_of(StoreSpec("x", value=Text())), can_upgrade=False)
    assert "those of the serde JsonSerde of" in by_name.reasons[0]


def test_a_serde_that_an_earlier_version_has_recorded_by_name_is_accepted() -> None:
    now = declaration_of(StoreSpec("x", value=JsonSerde(Fields)))
    before = msgspec.structs.replace(now, serde="JsonSerde")
    change = compare(before, now, can_upgrade=False)
    assert (change.kind, change.becomes.serde) == ("wider", now.serde)


@dataclass
class Fields:
    cents: int


@dataclass
class MoreFields:
    cents: int
    note: str = ""


def test_a_record_of_a_later_format_is_refused_and_a_damaged_one_is_reported() -> None:
    later = b'{"format":3,"key":["map"],"form":"columns"}'
    with pytest.raises(FutureFormat, match="format 3"):
        Declaration.from_bytes(later)
    with pytest.raises(CorruptLog, match="damaged"):
        Declaration.from_bytes(b'{"format":1,"key":')


FOREIGN = [StoreSpec("x", key=JsonKey, value=Json()), StoreSpec("x", key=RawKey, value=bytes)]


@pytest.mark.parametrize("spec", [*FOREIGN, StoreSpec("x", key=str, value=Json())])
def test_an_older_strandline_refuses_other_frameworks_data_as_newer(
    monkeypatch: pytest.MonkeyPatch, spec: StoreSpec[Any, Any]
) -> None:
    data = declaration_of(spec).to_bytes()
    assert Declaration.from_bytes(data) == declaration_of(spec)
    monkeypatch.setattr(declaration, "DOCUMENT_FORMAT", 1)
    with pytest.raises(FutureFormat, match="format 2.*reads up to 1; upgrade"):
        Declaration.from_bytes(data)
    own = declaration_of(StoreSpec("x", value=int)).to_bytes()
    assert Declaration.from_bytes(own).format == 1


def test_another_serializer_of_keys_or_values_is_refused() -> None:
    stored = declaration_of(FOREIGN[0])
    same = declaration_of(StoreSpec("x", key=JsonKey, value=Json()))
    assert compare(stored, same, can_upgrade=False).kind == "same"
    for spec, reason in [
        (
            FOREIGN[1],
            "its keys are JSON (UTF-8, as orjson writes it), and are declared as raw bytes",
        ),
        (StoreSpec("x", key=AsciiJsonKey, value=Json()), "are declared as JSON (ASCII"),
        (StoreSpec("x", key=JsonKey, value=Text), "its values are JSON, and are declared as those"),
        (StoreSpec("x", key=JsonKey, value=int), "its values are JSON, and are declared as int"),
    ]:
        change = compare(stored, declaration_of(spec), can_upgrade=False)
        assert change.kind == "refused"
        assert reason in change.reasons[0]


@pytest.mark.parametrize("key", [["tuple", ["json"], False], ["optional", "raw"]])
def test_keys_of_another_framework_are_no_elements_of_tuples(key: Any) -> None:
    with pytest.raises(InvalidRequest, match="no known type of keys"):
        key_from_wire(key)


@pytest.mark.parametrize(
    "value",
    [
        '{"root":{}}',
        '{"root":{"is":"list"}}',
        '{"root":{"is":"object","name":"x"}}',
        '{"root":{"is":"union","of":[{"is":"dict"}]}}',
        '{"root":{"is":"int"},"objects":{"x":{}}}',
        '{"root":{"is":"int"},"objects":{"x":{"fields":{"n":{}}}}}',
        '{"root":{"is":["int"]}}',
    ],
)
def test_a_record_that_describes_no_type_is_damaged(value: str) -> None:
    data = f'{{"key":"str","form":"typed","value":{value}}}'.encode()
    with pytest.raises(CorruptLog, match="damaged"):
        Declaration.from_bytes(data)
    with pytest.raises(CorruptLog, match="damaged"):
        Declaration.from_bytes(b'{"key":["map"],"form":"bytes"}')
