"""Recorded declarations of stores, and their comparison with what a program declares.

Besides a changelog, the log records how its values were written: the type of the keys, the
structure of the values, the time to live, the definition of aggregates, which values carry an
expiry, and the columns that hold the keys of the inputs. A program declares a store, and `compare`
decides whether it can read the stored values:

    same      nothing is different
    wider     every stored key and value is readable: the new declaration is recorded
    rewrite   values must be rewritten: by the store's `upgrade`, or only for their expiry
    refused   the reasons are in `DeclarationChange.reasons`

Only a wider declaration replaces a recorded one. A program that declares less than is recorded (an
older version of it) is refused, because it would drop the fields that it does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from strandline.changelog.decoding import json_decoder, json_value
from strandline.changelog.errors import UNREADABLE, CorruptLog, FutureFormat, InvalidRequest
from strandline.statestore.json_values import Json
from strandline.statestore.key_types import key_accepts, key_from_wire, key_to_wire
from strandline.statestore.keys import key_codec
from strandline.statestore.serdes import Bytes, MessagePack, Serde, TypedMessagePack, value_serde
from strandline.statestore.spec import AnySpec
from strandline.statestore.value_types import (
    TypeDescription,
    described_type,
    is_well_formed,
    shown,
    unreadable,
)
from strandline.statestore.values import Expiry

DOCUMENT_FORMAT = 2
"""Newest version of the recorded document. Later versions are refused.

Version 2 is written only for the keys and values of another framework, so that versions of
Strandline that know version 1 alone read all other declarations of stores. Records of internal
topics have no document and no version.
"""

Form = Literal["messagepack", "typed", "bytes", "json", "serde"]
Figures = dict[str, tuple[str, str | None]]
_OF_FIGURES = ("results", "state")
"""Parts of an operator's definition that follow from its figures."""
_RECORDED_LATER = ("placed_by", "window", *_OF_FIGURES)
"""Parts that definitions from earlier versions do not have, and that are not compared then."""


class TopicIds(NamedTuple):
    """Identity of an internal topic in one log. A copy of it in another log has other ids."""

    topic_id: str
    recorded_in: str
    """Id of the topic of recorded declarations."""


class RepartitionRecord(NamedTuple):
    """Record of a topic that has rows between two tasks of an app."""

    topic_id: str
    recorded_in: str
    """Id of the topic of recorded declarations."""
    columns: tuple[str, ...] | None = None
    """Columns that all rows have which are not handled yet; None if that is not recorded."""

    @property
    def ids(self) -> TopicIds:
        """Identity of the topic."""
        return TopicIds(self.topic_id, self.recorded_in)


class Declaration(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Declaration of a store: the current one, or the one with which values were written."""

    format: int = 1
    """Version of the document."""
    version: int = 1
    """Version of the values, raised by each rewrite. Each partition records the one it has."""
    key: Any
    """Type of the keys; see `statestore.key_types`."""
    form: Form
    """Encoding of values: MessagePack (typed or not), bytes unchanged, JSON, or a serde."""
    value: TypeDescription | None = None
    """Structure of typed values."""
    serde: str | None = None
    """Identity of the serde: its attribute `identity`, else the name of its class. The structure of
    its attribute `declared`, the type of its values, follows after a space, as JSON."""
    ttl_ms: int | None = None
    """Milliseconds after which a value expires; None for never."""
    expiry: Expiry = "none"
    """Set of stored values that begin with their expiry: none, marked ones, or all."""
    figures: Figures | None = None
    """Kind and column of each aggregate, by name; None if the values are no aggregates."""
    definition: str | None = None
    """Definition of the operator of a stream whose state it is, or of a Faust table; else None."""
    counter: bool = False
    """True if the values are counts, which readers add up over the partitions."""
    keyed_by: dict[str, str] = {}
    """Column that holds the key, by input of the store's task; other inputs are left out."""
    before: Declaration | None = None
    """Declaration of the values in partitions that are not rewritten to `version` yet."""
    changelog_id: TopicIds | None = None
    """Ids of the changelog when this was recorded; None from earlier versions."""

    @property
    def is_messagepack(self) -> bool:
        """True if values are MessagePack, which never begins with the byte that marks an expiry."""
        return self.form in ("messagepack", "typed")

    def to_bytes(self) -> bytes:
        """Return the recorded document as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Declaration:
        """Read a recorded document. Raises FutureFormat, CorruptLog."""
        try:
            found = _decode(data)
        except UNREADABLE as error:
            version = _format_of(data)
            if version <= DOCUMENT_FORMAT:
                raise CorruptLog(f"a store's recorded declaration is damaged: {error}") from error
        else:
            version = found.format
            if version <= DOCUMENT_FORMAT:
                return _checked(found)
        raise FutureFormat(
            f"a store's declaration is recorded in format {version}, this version reads up to "
            f"{DOCUMENT_FORMAT}; upgrade Strandline"
        )


def declaration_of(spec: AnySpec) -> Declaration:
    """Return the declaration of a store.

    >>> from strandline.statestore.spec import StoreSpec
    >>> declaration_of(StoreSpec("n", key=str, value=bytes, ttl_ms=1000)).expiry
    'always'
    """
    serde = value_serde(spec.value)
    form = form_of_serde(serde)
    opaque = form not in ("messagepack", "typed")
    declared = Declaration(
        format=2 if form == "json" or key_codec(spec.key).is_foreign else 1,
        key=key_to_wire(spec.key),
        form=form,
        value=described_type(serde.declared) if isinstance(serde, TypedMessagePack) else None,
        serde=_identity(serde) if form == "serde" else None,
        ttl_ms=spec.ttl_ms,
        expiry="none" if spec.ttl_ms is None else "always" if opaque else "marked",
        figures=None if spec.figures is None else dict(spec.figures),
        definition=spec.definition,
        counter=spec.is_counter,
        keyed_by=dict(spec.keyed_by),
    )
    return _decode(declared.to_bytes())  # decoded, so that it compares equal to a recorded one


def form_of_serde(serde: Serde[Any]) -> Form:
    """Return the form of the values that a serde writes."""
    return _FORMS.get(type(serde), "serde")


def plain_serde(form: str) -> Serde[Any]:
    """Return the serde that decodes values of a form as plain data; as bytes if it is unknown.

    >>> plain_serde("json").loads(b"1"), plain_serde("typed").loads(b"1")
    (1, 49)
    """
    return _PLAIN.get(form, _MESSAGEPACK)


def undeclared(declared: Declaration) -> Declaration:
    """Return the declaration assumed for values written before declarations were recorded.

    At that time their first byte decided whether they have an expiry. For MessagePack that is still
    correct. Other values with a time to live are rewritten, because they may begin with any byte.
    """
    opaque = not declared.is_messagepack
    expiry: Expiry = "none" if opaque and declared.ttl_ms is None else "marked"
    return msgspec.structs.replace(declared, expiry=expiry)


@dataclass(frozen=True)
class DeclarationChange:
    """Result of comparing a declaration with the recorded one."""

    kind: Literal["same", "wider", "rewrite", "refused"]
    """Outcome; the module's docstring lists them."""
    becomes: Declaration
    """Declaration to record."""
    reasons: list[str] = field(default_factory=list)
    """Reasons why stored values cannot be read with the new declaration."""
    replaces: bool = False
    """True if it replaces a recorded declaration that it cannot read, because nothing is stored."""

    @property
    def needs_upgrade(self) -> bool:
        """True if the store's `upgrade` is to convert stored values."""
        return self.kind == "rewrite" and bool(self.reasons)


def compare(stored: Declaration, declared: Declaration, *, can_upgrade: bool) -> DeclarationChange:
    """Compare a declaration with the recorded one.

    `can_upgrade` says that the store has an `upgrade`, so that unreadable values can be rewritten.
    """
    declared = _decode(declared.to_bytes())  # a copy, because comparing marks fields in it
    if not key_accepts(declared.key, stored.key):
        old, new = (_shown_key(one.key) for one in (stored, declared))
        return DeclarationChange(
            "refused", stored, [f"its keys are {old}, and are declared as {new}"]
        )
    if moved := [*_other_columns(stored.keyed_by, declared.keyed_by)]:
        return DeclarationChange("refused", stored, moved)
    declared.keyed_by = stored.keyed_by | declared.keyed_by
    reasons = list(_reasons(stored, declared))
    expiry = _expiry(stored, declared)
    kept = {name: getattr(stored, name) for name in ("version", "before", "changelog_id")}
    becomes = msgspec.structs.replace(declared, expiry=expiry, **kept)
    if not reasons and (expiry == stored.expiry or declared.is_messagepack):
        return DeclarationChange("same" if becomes == stored else "wider", becomes)
    if reasons and not can_upgrade:
        return DeclarationChange("refused", stored, reasons)
    if stored.before is not None:
        unfinished = "an earlier change of its values is not finished: run its program first"
        return DeclarationChange("refused", stored, [*reasons, unfinished])
    rewritten = msgspec.structs.replace(becomes, version=stored.version + 1, before=stored)
    return DeclarationChange("rewrite", rewritten, reasons)


def unreadable_as(wanted: Declaration, stored: Declaration, *, values: bool) -> list[str]:
    """Return the reasons why a reader cannot read stored keys, and with `values` also values.

    A reader writes nothing, so it may declare fewer fields than stored values have, and plain data
    for aggregates.
    """
    if not key_accepts(wanted.key, stored.key):
        old, new = (_shown_key(one.key) for one in (stored, wanted))
        return [f"its keys are {old}, and are wanted as {new}"]
    if not values or not (stored.form == wanted.form == "typed"):
        return []
    assert stored.value is not None
    assert wanted.value is not None
    reason = unreadable(wanted.value, stored.value, dropping=True)
    return [] if reason is None else [reason]


def _reasons(stored: Declaration, declared: Declaration) -> Iterator[str]:
    """Yield the reasons why stored values do not fit the declaration."""
    if stored.definition != declared.definition:
        yield from _other_definition(stored, declared)
    if stored.figures != declared.figures:
        yield _other_figures(stored.figures, declared.figures)
    elif stored.form == "typed" and declared.form == "typed":
        assert stored.value is not None
        assert declared.value is not None
        reason = unreadable(declared.value, stored.value)
        reason = reason or _big_ints(stored.value, declared.value)
        if reason:
            yield reason
    elif (stored.form, declared.form) == ("typed", "messagepack"):
        return
    elif stored.form == declared.form == "serde":
        if reason := _other_serde(stored, declared):
            yield reason
    elif stored.form != declared.form:
        yield f"its values are {_shown_form(stored)}, and are declared as {_shown_form(declared)}"


def _other_columns(stored: Mapping[str, str], declared: Mapping[str, str]) -> Iterator[str]:
    """Yield the inputs whose key is another column than it was when state was made of them."""
    for name in sorted(stored.keys() & declared.keys()):
        was, now = stored[name], declared[name]
        if was != now:
            yield (
                f"its task's input {name!r} had its keys in the column {was!r}, and is declared with "
                f"key={now!r}"
            )


def _other_definition(stored: Declaration, declared: Declaration) -> Iterator[str]:
    """Yield how the definition of a stream's operator differs from that of stored state."""
    old, new = (_json_object(one.definition or "{}") for one in (stored, declared))
    if stored.figures != declared.figures:  # then the types of figures differ as well
        old, new = ({k: v for k, v in one.items() if k not in _OF_FIGURES} for one in (old, new))
    unknown = [part for part in _RECORDED_LATER if part not in old]
    new = {part: value for part, value in new.items() if part not in unknown}
    was, now = (one.get("operator", "no operator") for one in (old, new))
    if was != now:
        yield f"it is the state of {was}, and is declared as that of {now}"
        return
    for path, before, after in _unlike(old, new):
        yield f"{path}: {before} before, {after} now"


def _unlike(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the path of each difference of two JSON values, with the texts of both.

    >>> list(_unlike({"window": {"size": "1h"}}, {"window": {"size": "2h"}}))
    [('window.size', '"1h"', '"2h"')]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            inner = f"{path}.{name}" if path else name
            yield from _unlike(old.get(name), new.get(name), inner)
    elif old != new:
        yield path, msgspec.json.encode(old).decode(), msgspec.json.encode(new).decode()


def _json_object(text: str) -> dict[str, Any]:
    """Return a recorded definition; if it is no JSON object, one that has it as its operator."""
    with contextlib.suppress(*UNREADABLE):
        found = json_value(text.encode())
        if isinstance(found, dict):
            return found
    return {"operator": text}


def _other_serde(stored: Declaration, declared: Declaration) -> str | None:
    """Return why a serde may not read stored values, and mark what must stay as it is from now on.

    Without a recorded structure, as of earlier versions, every type of the same serde is accepted.
    """
    was, now = _named_serde(stored.serde), _named_serde(declared.serde)
    if was.name != now.name:
        return f"its values are {_shown_form(stored)}, and are declared as {_shown_form(declared)}"
    if was.value is None or now.value is None:
        return None
    reason = unreadable(now.value, was.value)
    declared.serde = now.identity
    return reason


def _big_ints(stored: TypeDescription, declared: TypeDescription) -> str | None:
    """Return why ints beyond 64 bits are unreadable: only a value declared as int can hold them."""
    was, now = stored.root["is"], declared.root["is"]
    if was == "int" and now not in ("int", "any"):
        return f"a value is int, and is declared as {now}: only int can read one beyond 64 bits"
    return None


def _expiry(stored: Declaration, declared: Declaration) -> Expiry:
    """Return which values begin with an expiry once this declaration is recorded.

    Values keep the expiry that they have. Without a time to live, new values never expire.
    """
    if stored.expiry == "none" and declared.expiry == "none":
        return "none"
    return "marked" if declared.is_messagepack else "always"


def _other_figures(stored: Figures | None, declared: Figures | None) -> str:
    was, now = (_shown_figures(figures) for figures in (stored, declared))
    return f"it keeps {was}, and is declared to keep {now}, which would miss old rows"


def _shown_figures(figures: Figures | None) -> str:
    if figures is None:
        return "values, not figures"
    return ", ".join(f"{name}={kind}({column or ''})" for name, (kind, column) in figures.items())


def _shown_form(declaration: Declaration) -> str:
    if declaration.form == "typed" and declaration.value is not None:
        return shown(declaration.value.root)
    if declaration.form == "serde":
        serde = _named_serde(declaration.serde)
        of = "" if serde.value is None else f" of {shown(serde.value.root)}"
        return f"those of the serde {serde.name}{of}"
    return _SHOWN_FORMS[declaration.form]


def _shown_key(key: Any) -> str:
    return key_codec(key_from_wire(key)).name


class _NamedSerde(NamedTuple):
    """Recorded identity of a serde."""

    name: str
    value: TypeDescription | None
    """Structure of its values; None if it is unknown."""

    @property
    def identity(self) -> str:
        """Text that is recorded."""
        if self.value is None:
            return self.name
        return f"{self.name} {msgspec.json.encode(self.value).decode()}"


def _identity(serde: Any) -> str:
    name = str(getattr(serde, "identity", None) or type(serde).__qualname__)
    declared = getattr(serde, "declared", None)
    return _NamedSerde(name, None if declared is None else described_type(declared)).identity


def _named_serde(identity: str | None) -> _NamedSerde:
    name, _, structure = (identity or "").partition(" {")
    with contextlib.suppress(*UNREADABLE):
        value = _decode_type("{" + structure)
        if is_well_formed(value):
            return _NamedSerde(name, value)
    return _NamedSerde(identity or "", None)


def _checked(found: Declaration) -> Declaration:
    """Return a decoded declaration if it is valid. Raises CorruptLog."""
    try:
        key_from_wire(found.key)
        is_whole = (found.form == "typed") == (found.value is not None)
    except (InvalidRequest, RecursionError):
        is_whole = False
    if not is_whole or (found.value is not None and not is_well_formed(found.value)):
        raise CorruptLog("a store's recorded declaration is damaged: it describes no type")
    if found.before is not None:
        _checked(found.before)
    return found


def _format_of(data: bytes) -> int:
    """Return the format version of a document; 0 if it has none."""
    try:
        found = json_value(data)
    except UNREADABLE:
        return 0
    version = found.get("format", DOCUMENT_FORMAT) if isinstance(found, dict) else 0
    return version if isinstance(version, int) else 0


_FORMS: dict[type, Form] = {
    MessagePack: "messagepack",
    TypedMessagePack: "typed",
    Bytes: "bytes",
    Json: "json",
}
_PLAIN: dict[str, Serde[Any]] = {"json": Json(), "bytes": Bytes(), "serde": Bytes()}
_MESSAGEPACK = MessagePack()
_SHOWN_FORMS = {"bytes": "bytes", "json": "JSON", "messagepack": "MessagePack without a type"}
_decode = json_decoder(Declaration).decode
_decode_type = json_decoder(TypeDescription).decode
