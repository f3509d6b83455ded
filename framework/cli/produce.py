"""`strandline produce`: JSON lines from stdin into a topic."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from changelog.client.accumulator import RecordMetadata
from changelog.client.columns import struct_of
from changelog.errors import InvalidRecord, StrandlineError
from changelog.records import TopicInfo
from framework.cli import output
from framework.cli.forms import KeyForm, ValueForm, parse_columns, parse_key, parse_value, unplain
from framework.cli.loading import opened
from framework.cli.options import JsonOption, LogOption, to_ms

if TYPE_CHECKING:
    from changelog.client.producer import Producer


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One record on stdin; `topic` and `offset`, which consume prints, say nothing here."""

    value: Any = msgspec.UNSET
    """An object of columns on a typed topic; null is a tombstone."""
    key: Any = None
    headers: list[tuple[str, Any]] = []
    timestamp: int | str | None = None
    """Milliseconds since the epoch, or ISO 8601; now if there is none."""
    partition: int | None = None
    topic: Any = None
    offset: Any = None


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the records go.")],
    key_column: Annotated[
        str | None,
        typer.Option(
            "--key-column", metavar="COLUMN", help="Typed topic: key each by this column."
        ),
    ] = None,
    key_format: Annotated[
        KeyForm, typer.Option("--key-format", help="How keys become bytes.")
    ] = "auto",
    value_format: Annotated[
        ValueForm,
        typer.Option("--value-format", help="How values become bytes; auto: MessagePack."),
    ] = "auto",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Produce records: JSON lines on stdin, each as {"key": "AA", "value": {"n": 1}}.

    A value of null is a tombstone; bytes are {"base64": "…"}. There may be a "timestamp" (ms, or
    ISO 8601), "headers" as pairs of name and text, and a "partition". With --json each
    acknowledged record is a line that says where it went.
    """
    with opened(log) as where, where.producer() as producer:
        info = where.broker.topic(topic)
        lines = _Lines(info, key_column, key_format, value_format)
        sent = 0
        for future in _acknowledged(lines.send(producer, sys.stdin.buffer)):
            sent += 1
            if json:
                done = future.result()
                output.document({"partition": done.partition, "offset": done.offset})
    if not json:
        output.note(f"{sent:,} record{'' if sent == 1 else 's'} to {topic}")


class _Lines:
    """How the lines for one topic become its records."""

    def __init__(
        self, info: TopicInfo, key_column: str | None, key_form: KeyForm, value_form: ValueForm
    ) -> None:
        if key_column is not None and (info.schema is None or key_column not in info.schema.names):
            names = "none" if info.schema is None else ", ".join(info.schema.names)
            raise typer.BadParameter(
                f"topic {info.name!r} has no column {key_column!r} to key by; its columns: {names}"
            )
        self._info = info
        self._key_column = key_column
        self._key_form: KeyForm = key_form
        self._value_form: ValueForm = value_form

    def send(self, producer: Producer, lines: Iterable[bytes]) -> Iterator[Future[RecordMetadata]]:
        """Send every line; an error names the line and how many records are in the log."""
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                yield self._send(producer, text)
            except StrandlineError as error:
                producer.flush()
                before = " (the lines before it are in)" if number > 1 else ""
                raise type(error)(f"line {number}: {error}{before}") from error

    def _send(self, producer: Producer, text: bytes) -> Future[RecordMetadata]:
        line = _parse(text)
        value = self._value(line.value)
        key = line.key if self._key_column is None or value is None else value[self._key_column]
        return producer.send(
            self._info.name,
            value,
            parse_key(key, self._key_form),
            partition=line.partition,
            timestamp=_timestamp(line.timestamp),
            headers=[(name, _header(item)) for name, item in line.headers],
        )

    def _value(self, value: Any) -> Any:
        if value is msgspec.UNSET:
            raise InvalidRecord('there is no "value"; write "value": null for a tombstone')
        if self._info.schema is not None:
            row = parse_columns(value, self._info.schema)
            # Now, while the line is known: the producer builds columns of many at once.
            struct_of([row], self._info.schema, f"topic {self._info.name!r}")
            return row
        return parse_value(value, self._value_form)


def _acknowledged(
    futures: Iterable[Future[RecordMetadata]], most: int = 10_000
) -> Iterator[Future[RecordMetadata]]:
    """Futures that are done, in order, `most` on their way; raises what one of them raised."""
    pending: deque[Future[RecordMetadata]] = deque()
    for future in futures:
        pending.append(future)
        while pending and (pending[0].done() or len(pending) >= most):
            yield _done(pending.popleft())
    yield from map(_done, pending)


def _done(future: Future[RecordMetadata]) -> Future[RecordMetadata]:
    future.result()
    return future


_decode = msgspec.json.Decoder(Line).decode


def _parse(text: bytes) -> Line:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRecord(
            f'{error}; a line is an object like {{"key": "AA", "value": {{"n": 1}}}}'
        ) from error


def _timestamp(given: int | str | None) -> int | None:
    if not isinstance(given, str):
        return given
    ms = to_ms(given)
    if ms is None:
        raise InvalidRecord(f"timestamp {given!r} is neither milliseconds nor ISO 8601")
    return ms


def _header(value: Any) -> bytes | None:
    value = unplain(value)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidRecord(f'a header\'s value is text or {{"base64": "…"}}, got {value!r}')
