"""`strandline produce`: append JSON lines from stdin to a topic."""

from __future__ import annotations

import datetime as dt
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from strandline.changelog.client.accumulator import RecordMetadata
from strandline.changelog.client.columns import struct_of
from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import InvalidRecord, StrandlineError
from strandline.changelog.records import TopicInfo
from strandline.framework.cli import output
from strandline.framework.cli.forms import (
    KeyForm,
    ValueForm,
    parse_columns,
    parse_key,
    parse_value,
)
from strandline.framework.cli.json_values import unplain
from strandline.framework.cli.loading import opened
from strandline.framework.cli.options import JsonOption, LogOption, to_ms

if TYPE_CHECKING:
    from strandline.changelog.client.producer import Producer


MAX_LINES_IN_FLIGHT = 10_000
"""Maximum number of lines that are sent and not acknowledged."""


class InputLine(msgspec.Struct, forbid_unknown_fields=True):
    """One record on stdin. `topic` and `offset`, which `consume` prints, are ignored."""

    value: Any = msgspec.UNSET
    """An object of columns on a typed topic; null is a tombstone."""
    key: Any = None
    headers: list[tuple[str, Any]] = []
    timestamp: int | float | str | None = None
    """Milliseconds since the epoch, or ISO 8601; None is now."""
    partition: int | None = None
    topic: Any = None
    offset: Any = None


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to append to.")],
    key_column: Annotated[
        str | None,
        typer.Option(
            "--key-column", metavar="COLUMN", help="Typed topic: key each by this column."
        ),
    ] = None,
    key_format: Annotated[
        KeyForm, typer.Option("--key-format", help="Format of the bytes of keys.")
    ] = "auto",
    value_format: Annotated[
        ValueForm,
        typer.Option("--value-format", help="Format of the bytes of values; auto: MessagePack."),
    ] = "auto",
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Append records: JSON lines on stdin, each like {"key": "AA", "value": {"n": 1}}.

    A value of null is a tombstone; bytes are {"base64": "…"}. A line may have a "timestamp" (ms, or
    ISO 8601), "headers" as pairs of name and text, and a "partition". With --json each acknowledged
    record prints a line with its partition and offset.
    """
    with opened(log) as where, where.producer() as producer:
        info = where.broker.topic(topic)
        lines = _Lines(info, key_column, key_format, value_format)
        sent = 0
        for done in _acknowledged(lines.send(producer, sys.stdin.buffer)):
            sent += 1
            if json:
                output.document({"partition": done.partition, "offset": done.offset})
    if not json:
        output.note(f"{sent:,} record{'' if sent == 1 else 's'} to {topic}")


class _ProducedLine(NamedTuple):
    """A line of stdin and the outcome of its append."""

    number: int
    outcome: Future[RecordMetadata] | StrandlineError
    """Future of the log's answer, or the error for which the line was not sent."""

    @property
    def is_known(self) -> bool:
        """True if the outcome is known."""
        return not isinstance(self.outcome, Future) or self.outcome.done()

    def done(self) -> RecordMetadata:
        """Return the record's partition and offset, or raise its error.

        Call it for the lines in order: the message of the error says that earlier ones are
        appended.
        """
        where = f"line {self.number}"
        try:
            if isinstance(self.outcome, Future):
                # The log refuses whole batches, and does not report which record was the reason.
                where += ", or one sent with it"
                return self.outcome.result()
            raise self.outcome
        except StrandlineError as error:
            before = " (the lines before it are in)" if self.number > 1 else ""
            raise type(error)(f"{where}: {error}{before}") from error


class _Lines:
    """Conversion of lines to the records of one topic."""

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

    def send(self, producer: Producer, lines: Iterable[bytes]) -> Iterator[_ProducedLine]:
        """Send lines until one cannot be sent."""
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                sent = _ProducedLine(number, self._send(producer, text))
            except StrandlineError as error:
                sent = _ProducedLine(number, error)
            yield sent
            if isinstance(sent.outcome, StrandlineError):
                return

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
            # Check here, where the line is known: the producer builds columns of many at once.
            struct_of([row], self._info.schema, f"topic {self._info.name!r}")
            return row
        return parse_value(value, self._value_form)


def _acknowledged(sent: Iterable[_ProducedLine]) -> Iterator[RecordMetadata]:
    """Yield the outcome of each line in order, with at most MAX_LINES_IN_FLIGHT in flight.

    Raises the error of a line, with its number. All lines before it are in the log.
    """
    pending: deque[_ProducedLine] = deque()
    for one in sent:
        pending.append(one)
        while pending and (pending[0].is_known or len(pending) >= MAX_LINES_IN_FLIGHT):
            yield pending.popleft().done()
    yield from (one.done() for one in pending)


_decode = json_decoder(InputLine).decode


def _parse(text: bytes) -> InputLine:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(
            f'{error}; a line is an object like {{"key": "AA", "value": {{"n": 1}}}}'
        ) from error


def _timestamp(given: float | str | None) -> Any:
    """Return a timestamp for `Producer.send`: text becomes a datetime, which may be before 1980."""
    if not isinstance(given, str):
        return given
    ms = to_ms(given)
    if ms is None:
        raise InvalidRecord(f"timestamp {given!r} is neither milliseconds nor ISO 8601")
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def _header(value: Any) -> bytes | None:
    value = unplain(value)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidRecord(f'a header\'s value is text or {{"base64": "…"}}, got {value!r}')
