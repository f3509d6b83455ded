"""`strandline stores`: committed state of apps, read from their workers or from changelogs.

The app's code is not needed: keys are self-describing, and values are MessagePack unless the app
has a serde of its own. How the tables of Faust are written is recorded in the log. The state of
streams is shown as columns (`stored_rows`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import heapq
import itertools
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import typer

from strandline.changelog.broker import Broker
from strandline.changelog.decoding import json_value
from strandline.changelog.errors import (
    UNREADABLE,
    InvalidRecord,
    InvalidRequest,
    KeyInSeveralPartitions,
    RequestTimedOut,
    StrandlineError,
)
from strandline.framework.cli import output
from strandline.framework.cli.forms import ValueForm, show_value
from strandline.framework.cli.json_values import json_line, plain, unplain
from strandline.framework.cli.loading import location, opened
from strandline.framework.cli.options import JsonOption, LogOption
from strandline.framework.cli.stored_rows import print_rows, stream_rows
from strandline.framework.parts import Entry, PartitionMerger, partitions_asked
from strandline.framework.querying.client import Connection, connect
from strandline.framework.querying.committed import entries
from strandline.framework.querying.declared import as_recorded, parts_of
from strandline.framework.querying.folded import ReplayedSource, long_ago
from strandline.framework.querying.store_names import StoreName, named_store, stores_of
from strandline.framework.querying.workers import Source
from strandline.statestore.declaration import Declaration, Form, plain_serde
from strandline.statestore.key_types import key_from_wire
from strandline.statestore.keys import KeyCodec, codec_of, decode_key, key_codec
from strandline.statestore.reader import KeyRange

commands = typer.Typer(help="The stores of apps: list, get, scan.", no_args_is_help=True)

"""Ending of the name of a changelog."""
MAX_MEANINGS = 4_096
"""Maximum number of keys that are looked up for a tuple: each text in it may be one of four types."""

StoreArgument = Annotated[
    str, typer.Argument(metavar="APP/STORE", help="A store, as `strandline stores list` calls it.")
]
FormOption = Annotated[
    ValueForm, typer.Option("--value-format", help="Format of the bytes of values.")
]

ExpiredOption = Annotated[
    bool, typer.Option("--expired", help="Include values whose time to live is over.")
]


Row = tuple[bytes, int | None, bytes]
"""A key, the partition that holds it (None if several do), and the value."""


@commands.command("list")
def list_stores(
    expired: ExpiredOption = False, log: LogOption = None, json: JsonOption = False
) -> None:
    """List the stores whose changelogs are in the log."""
    with opened(log) as where:
        rows = [_summary(where.broker, name, expired=expired) for name in stores_of(where.broker)]
    split = any(row["keys_in_several_partitions"] for row in rows)
    names = ["store", "partitions", "keys", "changelog"]
    if split:
        names.insert(3, "keys_in_several_partitions")
    output.listing(rows, names, json=json, empty="no store has a changelog here yet")


PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", min=0, metavar="N", help="Only the part of this partition."),
]
PartsOption = Annotated[
    bool, typer.Option("--parts", help="Show the part of each partition separately.")
]


@commands.command("get")
def get(
    store: StoreArgument,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help='Text, a number, a time, or JSON, as `scan --json` prints it: ["JFK", 1].',
        ),
    ],
    value_format: FormOption = "auto",
    expired: ExpiredOption = False,
    partition: PartitionOption = None,
    parts: PartsOption = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Print the committed value of a key. The exit code is 1 if it has none."""
    with _connected(log, expired=expired) as connection:
        where = named_store(connection.broker, store)
        as_stored = parts or expired or value_format != "auto"
        rows = None if as_stored else stream_rows(connection, str(where), partition)
        if rows is not None:
            shown = rows.of_key([decode_key(name) for name in encoded_keys(key)])
            if not shown:
                raise InvalidRequest(f"store {store} has nothing of the key {key}")
            print_rows(shown, json=json)
            return
        held = _held(connection, where, expired, partition)
        found = [
            _entry(entry, value_format, held)
            for name, have in held.having(list(encoded_keys(key, held.keys)))
            for entry in ([(name, *one) for one in have] if parts else [held.whole(name, have)])
        ]
    if not found:
        raise InvalidRequest(f"store {store} has no key {key}")
    for entry in found:
        place = f"partition {entry['partition']}: " if parts else ""
        output.line(json_line(entry) if json else place + output.cell(entry["value"]))


@commands.command("scan")
def scan(
    store: StoreArgument,
    prefix: Annotated[
        str,
        typer.Option("--prefix", help="Only keys with this beginning (a tuple: its first text)."),
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N keys.")
    ] = None,
    value_format: FormOption = "auto",
    expired: ExpiredOption = False,
    partition: PartitionOption = None,
    parts: PartsOption = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Print all keys of a store in order, with their committed values. --json: one line per key."""
    with _connected(log, expired=expired) as connection:
        name = named_store(connection.broker, store)
        as_stored = parts or expired or value_format != "auto"
        stream = None if as_stored else stream_rows(connection, str(name), partition)
        if stream is not None:
            print_rows(stream.all(prefix, limit), json=json)
            return
        held = _held(connection, name, expired, partition)
        entries_ = held.parts() if parts else held.all()
        rows = (_entry(entry, value_format, held) for entry in entries_)
        shown = islice((row for row in rows if _begins(row["key"], prefix)), limit)
        if json:
            for row in shown:
                output.document(row)
            return
        _print_entries(list(shown), parts=parts)


@contextlib.contextmanager
def _connected(log: str | None, *, expired: bool) -> Iterator[Connection]:
    with connect(location(log)) as connection:
        try:
            yield connection
        except KeyInSeveralPartitions as error:
            hint = "on the command line: --partition N, or --parts for all of them"
            raise KeyInSeveralPartitions(f"{error} ({hint})") from None
        except RequestTimedOut as error:
            if expired:
                raise
            hint = "--expired reads the changelogs instead, and asks no worker"
            raise RequestTimedOut(f"{error}; {hint}") from None


def encoded_keys(text: str, keys: KeyCodec[Any] | None = None) -> Iterator[bytes]:
    """Yield every key that `text` may mean, as stores encode it.

    Args:
        text: The key, as a user writes it.
        keys: Codec of keys that another framework writes; None if they describe themselves.

    >>> [decode_key(key) for key in encoded_keys("5")]
    ['5', b'5', 5, 5.0]
    >>> [decode_key(key) for key in encoded_keys('["2025-10-09"]')][4]
    (datetime.date(2025, 10, 9),)
    >>> [decode_key(key) for key in encoded_keys("\\udcff")]  # an argument that is not UTF-8
    ['\\udcff', b'\\xff']
    """
    candidates = _meanings_of_text(text)
    with contextlib.suppress(*UNREADABLE):
        candidates += _meanings(json_value(text))
    with contextlib.suppress(ValueError):
        candidates.append(float(text))  # as inf, and 1e3
    found: dict[bytes, None] = {}
    for candidate in candidates:
        # A time at the edge of the calendar may be none in UTC.
        with contextlib.suppress(StrandlineError, OverflowError):
            codec = keys or codec_of(candidate)
            found[codec.encode(codec.admit(candidate))] = None
    yield from found


def _meanings(value: Any) -> list[Any]:
    """Return the keys that a JSON value may mean, at most MAX_MEANINGS, the likeliest first."""
    if isinstance(value, list):
        each = map(_meanings, value)
        return list(itertools.islice(itertools.product(*each), MAX_MEANINGS))
    if isinstance(value, dict):
        with contextlib.suppress(InvalidRecord):
            return [unplain(value)]
        return []
    if isinstance(value, str):
        return _meanings_of_text(value)
    found = [value]
    if type(value) is int:
        with contextlib.suppress(OverflowError):
            found.append(float(value))
    return found


def _meanings_of_text(text: str) -> list[Any]:
    found: list[Any] = [text, text.encode(errors="surrogateescape")]
    with contextlib.suppress(ValueError):
        found.append(dt.date.fromisoformat(text))
    with contextlib.suppress(ValueError):
        moment = dt.datetime.fromisoformat(text)
        found.append(moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC))
    return found


class _Held(NamedTuple):
    """Entries of a store, and the partitions that hold them."""

    source: Source
    partitions: range
    merger: PartitionMerger[bytes]
    keys: KeyCodec[Any] | None = None
    """Codec of keys that another framework writes; None if they describe themselves."""
    form: Form = "messagepack"
    """Form of the values; bytes and values of serdes are not decoded."""

    def having(self, keys: list[bytes]) -> Iterator[tuple[bytes, list[tuple[int, bytes]]]]:
        """Yield those of some keys that exist, each with its partitions and their values."""
        parts = self.source.read(self.partitions, keys)
        for at, key in enumerate(keys):
            have = [
                (n, data) for n, part in sorted(parts.items()) if (data := part[at]) is not None
            ]
            if have:
                yield key, have

    def whole(self, key: bytes, have: list[tuple[int, bytes]]) -> Row:
        """Return one key merged over its partitions. Raise KeyInSeveralPartitions.

        The partition is None if several hold the key.
        """
        number = have[0][0] if len(have) == 1 else None
        return key, number, self.merger.whole(key, dict(have))

    def all(self) -> Iterator[Row]:
        """Yield all keys in order, each once. Raise KeyInSeveralPartitions."""
        for key, same in self._by_key():
            yield self.whole(key, [(number, data) for _, number, data in same])

    def parts(self) -> Iterator[Row]:
        """Yield all keys in order, once for each partition that holds the key."""
        return (row for _, same in self._by_key() for row in same)

    def counted(self) -> tuple[int, int]:
        """Return the number of keys, and the number of those that several partitions hold."""
        sizes = [sum(1 for _ in same) for _, same in self._by_key()]
        return len(sizes), sum(size > 1 for size in sizes)

    def _by_key(self) -> Iterator[tuple[bytes, Iterator[Entry[bytes]]]]:
        streams = [entries(self.source, number, KeyRange()) for number in self.partitions]
        return groupby(heapq.merge(*streams), key=itemgetter(0))


def _held(connection: Connection, name: StoreName, expired: bool, partition: int | None) -> _Held:
    """Return a store's entries as its workers have them, or as its changelogs have them.

    Workers do not return expired values, so `expired` reads the changelogs.
    """
    committed = connection.committed(str(name))
    numbers = partitions_asked(str(name), len(committed.partitions), partition)
    try:
        description = None if expired else committed.ask(lambda described, _source: described)
    except InvalidRequest:
        description = None  # an internal store of the app (timers), or one that it no longer has
    else:
        if not expired:
            recorded = committed.recorded()
            parts = parts_of(str(name), description or as_recorded(recorded))
            return _Held(committed, numbers, parts, *_encoding(recorded))
    return _folded(connection.broker, name, numbers, expired=expired)


def _encoding(declaration: Declaration | None) -> tuple[KeyCodec[Any] | None, Form]:
    """Return the codec of keys that do not describe themselves, and the form of the values."""
    if declaration is None:
        return None, "messagepack"
    codec = key_codec(key_from_wire(declaration.key))
    return codec if codec.is_foreign else None, declaration.form


def _folded(broker: Broker, name: StoreName, numbers: range, *, expired: bool) -> _Held:
    """Return a store's entries as its changelogs have them."""
    partitions, now = broker.topic(name.topic).partitions, long_ago if expired else None
    folded = ReplayedSource(broker, name.topic, partitions, app=name.app, now=now)
    recorded = folded.recorded()
    parts = parts_of(str(name), as_recorded(recorded))
    return _Held(folded, numbers, parts, *_encoding(recorded))


def _summary(broker: Broker, name: StoreName, *, expired: bool) -> dict[str, Any]:
    numbers = range(broker.topic(name.topic).partitions)
    keys, split = _folded(broker, name, numbers, expired=expired).counted()
    return {
        "store": str(name),
        "partitions": len(numbers),
        "keys": keys,
        "keys_in_several_partitions": split,
        "changelog": name.topic,
    }


def _entry(entry: Row, form: ValueForm, held: _Held) -> dict[str, Any]:
    key, partition, data = entry
    return {"key": _key(key, held), "value": _value(data, form, held), "partition": partition}


def _key(data: bytes, held: _Held) -> Any:
    if held.keys is not None:
        key = held.keys.decode(data)
        return _text_or_bytes(key) if isinstance(key, bytes) else plain(key)
    try:
        return plain(decode_key(data))
    except StrandlineError:
        return plain(data)


def _value(data: bytes, form: ValueForm, held: _Held) -> Any:
    if form != "auto":
        return show_value(data, form)
    if held.form in ("bytes", "serde"):
        return _text_or_bytes(data)
    try:
        return plain(plain_serde(held.form).loads(data))
    except InvalidRecord:
        return show_value(data)


def _text_or_bytes(data: bytes) -> Any:
    try:
        return {"utf8": data.decode()}
    except UnicodeDecodeError:
        return plain(data)


def _begins(key: Any, prefix: str) -> bool:
    first = key[0] if isinstance(key, list) and key else key
    if isinstance(first, dict):
        first = first.get("utf8")
    return not prefix or (isinstance(first, str) and first.startswith(prefix))


def _print_entries(rows: list[dict[str, Any]], *, parts: bool) -> None:
    if not rows:
        output.note("no keys")
        return
    fields = list(dict.fromkeys(name for row in rows for name in _fields(row["value"])))
    columns = ["key", *(["partition"] if parts else []), *(fields or ["value"])]
    cells = []
    for row in rows:
        values = _fields(row["value"])
        rest = [output.rounded(values.get(name)) for name in fields] if fields else [row["value"]]
        where = [row["partition"]] if parts else []
        cells.append([output.cell(row["key"]), *where, *rest])
    output.table("", columns, cells)


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) and value.keys() != {"base64"} else {}
