"""Choice of the codec of a topic's keys and values.

    keys      str: UTF-8 · bytes: as they are · int: 8 bytes big-endian · float: 8 bytes
              big-endian double · anything else: MessagePack (statestore.serdes)
    values    bytes: as they are · a dataclass, Struct or Arrow schema: a struct of columns, or JSON
              in a log that holds bytes only (Kafka) · anything else: MessagePack

`serde=` and `key_serde=` override the choice: the name of a form, a form with settings
(`AvroSerde(…)`), or any object with `dumps` and `loads`.
"""

from __future__ import annotations

from typing import Any, Literal

from strandline.changelog.errors import InvalidConfig
from strandline.framework.formats.codecs import Codec, RowCodec, SerdeCodec, StrCodec
from strandline.framework.formats.json import JsonSerde
from strandline.framework.formats.msgpack import PackForm, untyped
from strandline.framework.formats.numbers import NumberCodec
from strandline.framework.formats.schema import RowType, is_typed
from strandline.framework.formats.wire import ObjectCodec, SerdeForm, SerdeUse
from strandline.statestore.serdes import Bytes, Double, DoubleKey, Long, Serde, topic_key_serde

Name = Literal["json", "avro", "protobuf", "msgpack", "bytes"]
AnySerde = Serde[Any] | SerdeForm | Name
"""Argument of `serde=`."""


def key_codec(kind: Any, serde: AnySerde | None = None, place: SerdeUse | None = None) -> Codec:
    """Return the codec of a topic's keys. Raise InvalidConfig."""
    if serde is not None:
        return _codec(kind, serde, place or SerdeUse("", "key"))
    if kind is str:
        return StrCodec()
    return _by_value(topic_key_serde(kind), bytes if kind is bytes else None)


def value_codec(
    kind: Any,
    serde: AnySerde | None = None,
    place: SerdeUse | None = None,
    *,
    columns: bool = True,
) -> Codec:
    """Return the codec of a topic's values; `columns` is True if the log can hold columns.

    Raises InvalidConfig.
    """
    if serde is None and is_typed(kind) and not columns:
        serde = JsonSerde()
    if serde is not None:
        return _codec(kind, serde, place or SerdeUse(""))
    return RowCodec(RowType(kind)) if is_typed(kind) else untyped(kind)


def _codec(kind: Any, serde: AnySerde, place: SerdeUse) -> Codec:
    form = _named(serde, place) if isinstance(serde, str) else serde
    if isinstance(form, SerdeForm):
        return form.codec(kind, place)
    if not is_typed(kind):
        return _by_value(form)
    try:
        return ObjectCodec(RowType(kind), form)
    except InvalidConfig:
        return SerdeCodec(form)  # its fields cannot be columns, and a serde does not need any


def _by_value(serde: Serde[Any], exact: type | None = None) -> Codec:
    # Compared exactly, because another subclass may write another format.
    if type(serde) is Long or type(serde) is Double or type(serde) is DoubleKey:
        return NumberCodec(serde)
    return SerdeCodec(serde, exact)


def _named(name: str, place: SerdeUse) -> SerdeForm:
    if name not in _FORMS:
        raise InvalidConfig(
            f"{place}: there is no serde {name!r}; it is one of {', '.join(_FORMS)}, or an object with"
            " dumps and loads"
        )
    form: SerdeForm = _FORMS[name]()
    return form


class BytesForm:
    """Serde for bytes, which are stored unchanged."""

    def codec(self, kind: Any, place: SerdeUse) -> Codec:
        """Return the codec of bytes; see `SerdeForm.codec`."""
        if kind not in (bytes, Any, None):
            raise InvalidConfig(
                f"{place}: serde='bytes' is for values that are bytes, and they are declared as {kind!r};"
                " declare value=bytes, or name the form that the bytes have"
            )
        return SerdeCodec(Bytes(), bytes)


def _avro() -> SerdeForm:
    from strandline.framework.formats.avro import AvroSerde

    return AvroSerde()


def _protobuf() -> SerdeForm:
    from strandline.framework.formats.protobuf import ProtobufSerde

    return ProtobufSerde()


_FORMS: dict[str, Any] = {
    "json": JsonSerde,
    "avro": _avro,
    "protobuf": _protobuf,
    "msgpack": PackForm,
    "bytes": BytesForm,
}
