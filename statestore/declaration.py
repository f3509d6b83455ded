"""The declaration of a store as it is recorded, and what a changed one means for what is stored.

Next to a changelog the log records how its values were written: the type of the keys, the
structure of the values, the time to live, the definition of aggregates, and where values carry
an expiry. A program declares a store; `compare` says whether what is stored is readable by it:

    same      nothing is different
    wider     every stored key and value is readable: the record becomes the new declaration
    rewrite   values must be written anew: by the store's `upgrade`, or only for their expiry
    refused   `DeclarationChange.reasons` say why

Only a wider declaration replaces a record, so a program that declares less than is recorded (an
older version of it) is refused: it would drop what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from strandline.changelog.decoding import json_decoder
from strandline.changelog.depth import check_json
from strandline.changelog.errors import UNREADABLE, CorruptLog, FutureFormat, InvalidRequest
from strandline.statestore.key_types import key_accepts, key_from_wire, key_to_wire
from strandline.statestore.serdes import Bytes, MessagePack, TypedMessagePack, value_serde
from strandline.statestore.spec import AnySpec
from strandline.statestore.value_types import (
    TypeDescription,
    described_type,
    is_well_formed,
    shown,
    unreadable,
)
from strandline.statestore.values import Expiry

FORMAT = 1
"""Version of the recorded document. A later one is refused."""

Form = Literal["messagepack", "typed", "bytes", "serde"]
Figures = dict[str, tuple[str, str | None]]


class Declaration(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A store as it is declared, or was when its values were written."""

    format: int = FORMAT
    version: int = 1
    """Raised when values are rewritten: partitions that have come to it say so."""
    key: Any
    """Type of the keys; see `statestore.key_types`."""
    form: Form
    """What the bytes of values are: MessagePack (typed or not), themselves, or a serde's."""
    value: TypeDescription | None = None
    """Structure of typed values."""
    serde: str | None = None
    """Identity of the serde: its attribute `identity`, else the name of its class."""
    ttl_ms: int | None = None
    expiry: Expiry = "none"
    """Which stored values begin with their expiry."""
    figures: Figures | None = None
    """Kind and column of each aggregate."""
    before: Declaration | None = None
    """How values are written in partitions that have not come to `version` yet."""

    @property
    def is_messagepack(self) -> bool:
        """Whether values are MessagePack, of which none begins as an expiry does."""
        return self.form in ("messagepack", "typed")

    def to_bytes(self) -> bytes:
        """Return the recorded document: JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Declaration:
        """Read a recorded document. Raises FutureFormat, CorruptLog."""
        try:
            check_json(data)
            found = _decode(data)
        except UNREADABLE as error:
            version = _format_of(data)
            if version <= FORMAT:
                raise CorruptLog(f"a store's recorded declaration is damaged: {error}") from error
        else:
            version = found.format
            if version <= FORMAT:
                return _checked(found)
        raise FutureFormat(
            f"a store's declaration is recorded in format {version}, this version reads up to "
            f"{FORMAT}; upgrade Strandline"
        )


def declaration_of(spec: AnySpec) -> Declaration:
    """Return the declaration of a store.

    >>> from strandline.statestore.spec import StoreSpec
    >>> declaration_of(StoreSpec("n", key=str, value=bytes, ttl_ms=1000)).expiry
    'always'
    """
    serde = value_serde(spec.value)
    form = _FORMS.get(type(serde), "serde")
    opaque = form in ("bytes", "serde")
    declared = Declaration(
        key=key_to_wire(spec.key),
        form=form,
        value=described_type(serde.declared) if isinstance(serde, TypedMessagePack) else None,
        serde=_identity(serde) if form == "serde" else None,
        ttl_ms=spec.ttl_ms,
        expiry="none" if spec.ttl_ms is None else "always" if opaque else "marked",
        figures=None if spec.figures is None else dict(spec.figures),
    )
    return _decode(declared.to_bytes())  # as it compares with one that was read


def undeclared(declared: Declaration) -> Declaration:
    """Return what to assume of values that were written before declarations were recorded.

    Their first byte told whether they have an expiry. Of MessagePack that is still true; other
    values with a time to live are rewritten, because any byte may be their first.
    """
    opaque = not declared.is_messagepack
    expiry: Expiry = "none" if opaque and declared.ttl_ms is None else "marked"
    return msgspec.structs.replace(declared, expiry=expiry)


@dataclass(frozen=True)
class DeclarationChange:
    """What a declaration means for values that were written under a recorded one."""

    kind: Literal["same", "wider", "rewrite", "refused"]
    becomes: Declaration
    """What to record."""
    reasons: list[str] = field(default_factory=list)
    """Why values cannot be read as they are."""
    replaces: bool = False
    """Whether it takes the place of a recorded one that it cannot read, because nothing is stored."""


def compare(stored: Declaration, declared: Declaration, *, can_upgrade: bool) -> DeclarationChange:
    """Compare a declaration with the recorded one; `can_upgrade`: the store has an `upgrade`."""
    declared = _decode(declared.to_bytes())  # comparing marks fields in it
    if not key_accepts(declared.key, stored.key):
        old, new = (_shown_key(one.key) for one in (stored, declared))
        return DeclarationChange(
            "refused", stored, [f"its keys are {old}, and are declared as {new}"]
        )
    reasons = list(_reasons(stored, declared))
    expiry = _expiry(stored, declared)
    becomes = msgspec.structs.replace(
        declared, version=stored.version, before=stored.before, expiry=expiry
    )
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
    """Return why stored keys, and `values` too, cannot be read as types that a reader wants.

    A reader that only reads may know fewer fields than there are, and may want plain data of figures.
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
    """Why stored values are not what is declared."""
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
    elif (stored.form, stored.serde) != (declared.form, declared.serde):
        yield f"its values are {_shown_form(stored)}, and are declared as {_shown_form(declared)}"


def _big_ints(stored: TypeDescription, declared: TypeDescription) -> str | None:
    """Ints beyond 64 bits have a form only where the whole value is declared as int."""
    was, now = stored.root["is"], declared.root["is"]
    if was == "int" and now not in ("int", "any"):
        return f"a value is int, and is declared as {now}: one beyond 64 bits is read by int alone"
    return None


def _expiry(stored: Declaration, declared: Declaration) -> Expiry:
    """Which values begin with their expiry once this is recorded.

    An expiry that values have stays with them: without a time to live no more is given.
    """
    if stored.expiry == "none" and declared.expiry == "none":
        return "none"
    return "marked" if declared.is_messagepack else "always"


def _other_figures(stored: Figures | None, declared: Figures | None) -> str:
    was, now = (_shown_figures(figures) for figures in (stored, declared))
    return f"it keeps {was}, and is declared to keep {now}, of which old rows would be no part"


def _shown_figures(figures: Figures | None) -> str:
    if figures is None:
        return "values, not figures"
    return ", ".join(f"{name}={kind}({column or ''})" for name, (kind, column) in figures.items())


def _shown_form(declaration: Declaration) -> str:
    if declaration.form == "typed" and declaration.value is not None:
        return shown(declaration.value.root)
    if declaration.form == "serde":
        return f"those of the serde {declaration.serde}"
    return {"bytes": "bytes", "messagepack": "MessagePack without a type"}[declaration.form]


def _shown_key(key: Any) -> str:
    kind = key_from_wire(key)
    return kind.__name__ if isinstance(key, str) else str(kind)


def _identity(serde: Any) -> str:
    return str(getattr(serde, "identity", None) or type(serde).__qualname__)


def _checked(found: Declaration) -> Declaration:
    """What was read, if it can be worked with. Raises CorruptLog."""
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
    """The format that a document says it has; 0 if it says none."""
    try:
        check_json(data)
        found = msgspec.json.decode(data)
    except UNREADABLE:
        return 0
    version = found.get("format", FORMAT) if isinstance(found, dict) else 0
    return version if isinstance(version, int) else 0


_FORMS: dict[type, Form] = {MessagePack: "messagepack", Bytes: "bytes", TypedMessagePack: "typed"}
_decode = json_decoder(Declaration).decode
