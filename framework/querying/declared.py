"""Descriptions of stores for clients, and the codecs that clients make from them.

The type of keys is sent as its name, `["tuple", [types], any length]`, or `["optional", type]`; all
of these types are built in. A client decodes values of a class as plain data unless its own code
passes the class, because it never looks up a class by a name that was received.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from strandline.changelog.errors import (
    CorruptLog,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    StrandlineError,
)
from strandline.framework.parts import Merge, PartitionMerger
from strandline.framework.querying.messages import StoreDescription
from strandline.framework.store import Store
from strandline.framework.task import TaskSpec
from strandline.statestore.aggregates import Aggregates, recorded
from strandline.statestore.declaration import (
    Declaration,
    declaration_of,
    form_of_serde,
    plain_serde,
    unreadable_as,
)
from strandline.statestore.json_values import Json
from strandline.statestore.key_types import key_from_wire, key_to_wire
from strandline.statestore.keys import KeyCodec, codec_of, decode_key, key_codec
from strandline.statestore.serdes import Bytes, MessagePack, Serde, TypedMessagePack, value_serde
from strandline.statestore.spec import UNSET, StoreSpec


def described(task: TaskSpec, store: Store[Any, Any]) -> StoreDescription:
    """Return the description of a store for clients."""
    serde = value_serde(store.spec.value)
    figures = store.spec.figures
    return StoreDescription(
        [topic.name for topic in task.inputs],
        key_to_wire(store.spec.key),
        form_of_serde(serde),
        _name(serde.declared if isinstance(serde, TypedMessagePack) else type(serde)),
        None if figures is None else dict(figures),
        _default(store, serde),
        store.spec.is_counter,
    )


@dataclass(frozen=True)
class StoreCodec:
    """Encodes and decodes the keys and values of one store."""

    name: str
    """Name of the store, for errors."""
    keys: KeyCodec[Any] | None
    """Codec of the keys; None if unknown, then the codec is chosen by the type of each key."""
    values: Serde[Any]
    shown: Callable[[Any], Any] | None = None
    """Converts a stored value to the value that users see; None if they are the same."""
    default_data: bytes | None = None
    merge: Merge[Any] | None = None
    """Merges the stored values of several partitions; None if they cannot be merged."""
    is_given: bool = False
    """True if the caller has named the type of the values, and it may be the wrong one."""

    @cached_property
    def parts(self) -> PartitionMerger[bytes]:
        """Merger of the stored data of several partitions."""
        return PartitionMerger(self.name, self.key_of, None if self.merge is None else self._merged)

    def _merged(self, parts: Sequence[bytes]) -> bytes:
        assert self.merge is not None
        return self.values.dumps(self.merge([self._loaded(part) for part in parts]))

    def _loaded(self, data: bytes) -> Any:
        try:
            return self.values.loads(data)
        except Exception as error:  # a serde's own may be of any type
            passes = isinstance(error, StrandlineError) and not isinstance(error, InvalidRecord)
            if passes or isinstance(error, MemoryError):
                raise
            kind, advice = (
                (InvalidRecord, "give the type and serde with which it was written")
                if self.is_given
                else (CorruptLog, "it was not written with the declaration of the store")
            )
            raise kind(
                f"store {self.name!r}: a stored value cannot be decoded ({error!r:.500}); {advice}"
            ) from error

    def key(self, key: Any) -> bytes:
        """Return the bytes of a key. Raises InvalidRecord."""
        try:
            codec = self.keys or codec_of(key)
            return codec.encode(codec.admit(key))
        except (InvalidRecord, InvalidConfig) as error:
            raise InvalidRecord(f"store {self.name!r}: {error}") from error

    @cached_property
    def may_be_placed(self) -> bool:
        """True if the partitioner may have chosen the partition of a key by the key itself."""
        return self.keys is None or not self.keys.is_foreign

    def codec(self, key: Any) -> KeyCodec[Any]:
        """Return the codec of keys: the declared one, else by the type of `key`.

        Raises InvalidConfig.
        """
        return self.keys or codec_of(key)

    def key_of(self, data: bytes) -> Any:
        """Return the key in `data`. Raises CorruptLog."""
        return decode_key(data) if self.keys is None else self.keys.decode(data)

    def value_of(self, data: bytes) -> Any:
        """Return the value in `data`. Raises CorruptLog or InvalidRecord if it cannot be decoded."""
        value = self._loaded(data)
        return value if self.shown is None else self.shown(value)

    @property
    def default(self) -> Any:
        """Value of a key that was never set; UNSET if the store has no default."""
        return UNSET if self.default_data is None else self.value_of(self.default_data)


def form_of(name: str, told: StoreDescription | None, key: Any, value: Any) -> StoreCodec:
    """Return the codec of a store: by the caller's types, else by the description, else untyped.

    `value` is a type, a serde, or a store of the caller's own app.

    Raises InvalidConfig if the values need a serde that only the app's own code has.
    """
    if isinstance(value, Store):
        return _form_of_store(name, value)
    keys = keys_of(told) if key is UNSET else key_codec(key)
    default = None if told is None else told.default
    is_counter = told is not None and told.counter
    if value is not UNSET:
        merge = sum if is_counter and value is int else None
        return StoreCodec(
            name, keys, _given_serde(told, value), None, default, merge, is_given=True
        )
    if told is None:
        return StoreCodec(name, keys, MessagePack())
    if told.figures is not None:
        figures = _aggregates(told.figures)
        merges = figures.merge if figures.can_merge else None
        return StoreCodec(
            name, keys, TypedMessagePack(figures.state), figures.result, default, merges
        )
    if told.form == "serde":
        raise InvalidConfig(
            f"the values of store {name!r} are written by {told.named}, which is known to the app only; "
            f"give it, or a type: store({name!r}, value=…)"
        )
    merge = sum if is_counter else None
    return StoreCodec(name, keys, plain_serde(told.form), None, default, merge)


def keys_of(told: StoreDescription | None) -> KeyCodec[Any] | None:
    """Return the codec of the keys of a described store; None if they describe themselves."""
    return None if told is None else key_codec(key_from_wire(told.key))


def _form_of_store(name: str, store: Store[Any, Any]) -> StoreCodec:
    """Return the codec by the app's own declaration of a store."""
    keys, serde = key_codec(store.spec.key), value_serde(store.spec.value)
    return StoreCodec(name, keys, serde, store.shown, _default(store, serde), store.merge)


def parts_of(name: str, told: StoreDescription | None) -> PartitionMerger[bytes]:
    """Return the merger for a store whose values need not be decoded unless they are merged."""
    try:
        return form_of(name, told, UNSET, UNSET).parts
    except InvalidConfig:
        return PartitionMerger(name, StoreCodec(name, keys_of(told), Bytes()).key_of)


def as_recorded(declaration: Declaration | None) -> StoreDescription | None:
    """Return the description by a store's recorded declaration, without inputs.

    A default is not recorded. That of a counter is always 0.
    """
    if declaration is None:
        return None
    return StoreDescription(
        [],
        declaration.key,
        declaration.form,
        declaration.serde or "",
        declaration.figures,
        value_serde(int).dumps(0) if declaration.counter else None,
        declaration.counter,
    )


def check_given(name: str, declaration: Declaration | None, key: Any, value: Any) -> None:
    """Raise InvalidConfig if the recorded declaration of a store is incompatible with the types."""
    if declaration is None:
        return
    wanted = declaration_of(
        StoreSpec(
            "given",
            key=key_from_wire(declaration.key) if key is UNSET else key,
            value=None if value is UNSET else value,
        )
    )
    reasons = unreadable_as(wanted, declaration, values=value is not UNSET)
    if reasons:
        raise InvalidConfig(f"store {name!r} has other types: {'; '.join(reasons)}")


def _aggregates(figures: Mapping[str, tuple[str, str | None]]) -> Aggregates:
    """Return the aggregates in a description. Raises InvalidRequest."""
    try:
        return Aggregates(**{name: recorded(*one) for name, one in figures.items()})
    except (InvalidConfig, TypeError, ValueError) as error:
        raise InvalidRequest(f"unknown aggregates: {figures!r:.200}") from error


def _given_serde(told: StoreDescription | None, value: Any) -> Serde[Any]:
    """Return the serde of a type that the caller has given; JSON is converted to that type."""
    serde = value_serde(value)
    if told is None or told.form != "json":
        return serde
    if isinstance(serde, TypedMessagePack):
        return Json(serde.declared)
    return Json() if isinstance(serde, MessagePack) else serde


def _name(declared: Any) -> str:
    if isinstance(declared, type) and not get_args(declared):
        return f"{declared.__module__}:{declared.__qualname__}"
    return str(declared)


def _default(store: Store[Any, Any], serde: Serde[Any]) -> bytes | None:
    spec = store.spec
    if spec.default_factory is not None:
        return serde.dumps(spec.default_factory())
    return None if spec.default is UNSET else serde.dumps(spec.default)
