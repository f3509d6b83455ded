"""`strandline stores`: the committed state of apps, as their workers have it, or their changelogs.

What an app's code declares is not needed: keys say themselves what they are, and values are
MessagePack unless the app has a serde of its own.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from changelog.broker import Broker
from changelog.depth import check_json
from changelog.errors import InvalidRecord, InvalidRequest, RequestTimedOut, StrandlineError
from framework.cli import output
from framework.cli.forms import ValueForm, json_line, plain, show_value
from framework.cli.loading import location, opened
from framework.cli.options import JsonOption, LogOption
from framework.querying.client import Connection, connect
from framework.querying.committed import entries
from framework.querying.folded import Folded
from framework.querying.workers import Source
from statestore.keys import codec_of, decode_key
from statestore.reader import Bounds
from statestore.serdes import MessagePack
from statestore.spec import changelog_topic

commands = typer.Typer(help="The stores of apps: list, get, scan.", no_args_is_help=True)

CHANGELOG = changelog_topic("", "")[1:]

StoreArgument = Annotated[
    str, typer.Argument(metavar="APP/STORE", help="A store, as `strandline stores list` calls it.")
]
FormOption = Annotated[
    ValueForm, typer.Option("--value-format", help="How to take the bytes of values.")
]

ExpiredOption = Annotated[
    bool, typer.Option("--expired", help="Also values whose time to live is over.")
]


class StoreName(NamedTuple):
    """An app's store."""

    app: str
    store: str

    @property
    def topic(self) -> str:
        """The topic of its changelog."""
        return changelog_topic(self.app, self.store)

    def __str__(self) -> str:
        return f"{self.app}/{self.store}"


@commands.command("list")
def list_stores(
    expired: ExpiredOption = False, log: LogOption = None, json: JsonOption = False
) -> None:
    """List the stores whose changelogs are in the log."""
    with opened(log) as where:
        rows = [_summary(where.broker, name, expired=expired) for name in stores_of(where.broker)]
    names = ("store", "partitions", "keys", "changelog")
    output.listing(rows, names, json=json, empty="no store has a changelog here yet")


@commands.command("get")
def get(
    store: StoreArgument,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help='Text, a number, or JSON: a tuple is a list, as ["JFK", "AA"].'
        ),
    ],
    value_format: FormOption = "auto",
    expired: ExpiredOption = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Print the committed value of a key. Exit code 1 if it has none."""
    wanted = list(encoded_keys(key))
    with _connected(log, expired=expired) as connection:
        held = _held(connection, _named(connection.broker, store), expired=expired)
        found = [
            _entry(partition, name, data, value_format)
            for partition, values in held.source.read(held.partitions, wanted).items()
            for name, data in zip(wanted, values, strict=True)
            if data is not None
        ]
    if not found:
        raise InvalidRequest(f"store {store} has no key {key}")
    for entry in found:
        output.line(json_line(entry) if json else output.cell(entry["value"]))


@commands.command("scan")
def scan(
    store: StoreArgument,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only keys that begin so (text, or a tuple's first).")
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N keys.")
    ] = None,
    value_format: FormOption = "auto",
    expired: ExpiredOption = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Print all keys of a store, in order, and their committed values. --json: a line each."""
    with _connected(log, expired=expired) as connection:
        held = _held(connection, _named(connection.broker, store), expired=expired)
        rows = (
            _entry(partition, name, data, value_format)
            for name, partition, data in heapq.merge(*held.entries())
        )
        shown = islice((row for row in rows if _begins(row["key"], prefix)), limit)
        if json:
            for row in shown:
                output.document(row)
            return
        _print_entries(list(shown))


@contextlib.contextmanager
def _connected(log: str | None, *, expired: bool) -> Iterator[Connection]:
    with connect(location(log)) as connection:
        try:
            yield connection
        except RequestTimedOut as error:
            if expired:
                raise
            hint = "--expired reads the changelogs instead, and asks no worker"
            raise RequestTimedOut(f"{error}; {hint}") from None


def stores_of(broker: Broker) -> list[StoreName]:
    """The stores that have a changelog, by name."""
    groups = sorted(broker.groups(), key=len, reverse=True)
    return sorted(
        _name(info.name, groups)
        for info in broker.topics()
        if info.name.endswith(CHANGELOG) and info.effective.compact
    )


def encoded_keys(text: str) -> Iterator[bytes]:
    """Every key that `text` may mean, as stores encode them.

    >>> [decode_key(key) for key in encoded_keys("5")]
    ['5', b'5', 5]
    """
    candidates: list[Any] = [text, text.encode(errors="surrogateescape")]
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        check_json(text)
        candidates.append(_tuples(msgspec.json.decode(text)))
    for candidate in candidates:
        try:
            codec = codec_of(candidate)
            yield codec.encode(codec.admit(candidate))
        except StrandlineError:
            continue


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _named(broker: Broker, store: str) -> StoreName:
    app, slash, name = store.partition("/")
    known = stores_of(broker)
    topics = {found.topic for found in known}
    if not slash or StoreName(app, name).topic not in topics:
        names = ", ".join(map(str, known)) or "none"
        raise InvalidRequest(f"there is no store {store!r}; stores: {names}")
    return StoreName(app, name)


def _name(topic: str, groups: list[str]) -> StoreName:
    """The app is the longest group that the name begins with; before its first commit, a guess."""
    whole = topic.removesuffix(CHANGELOG)
    app = next((group for group in groups if whole.startswith(group + "-")), None)
    app = app or whole.partition("-")[0]
    return StoreName(app, whole[len(app) + 1 :])


class _Held(NamedTuple):
    """What a store holds, and in which partitions."""

    source: Source
    partitions: range

    def entries(self) -> list[Iterator[tuple[bytes, int, bytes]]]:
        """By partition the keys in order, where they are, and their values."""
        return [self._of(number) for number in self.partitions]

    def _of(self, number: int) -> Iterator[tuple[bytes, int, bytes]]:
        return ((key, number, data) for key, data in entries(self.source, number, Bounds()))


def _held(connection: Connection, name: StoreName, *, expired: bool) -> _Held:
    """As the workers have it. They do not tell what has expired: that is in the changelogs."""
    committed = connection.committed(str(name))
    try:
        known = not expired and committed.ask(lambda _told, _source: True)
    except InvalidRequest:
        known = False  # the app has it for itself, as timers, or does not have it any more
    if known:
        return _Held(committed, committed.partitions)
    return _folded(connection.broker, name, expired=expired)


def _folded(broker: Broker, name: StoreName, *, expired: bool) -> _Held:
    """As its changelogs have it."""
    partitions = broker.topic(name.topic).partitions
    return _Held(Folded(broker, name.topic, partitions, expired=expired), range(partitions))


def _summary(broker: Broker, name: StoreName, *, expired: bool) -> dict[str, Any]:
    held = _folded(broker, name, expired=expired)
    return {
        "store": str(name),
        "partitions": len(held.partitions),
        "keys": sum(1 for found in held.entries() for _ in found),
        "changelog": name.topic,
    }


def _entry(partition: int, key: bytes, data: bytes, form: ValueForm) -> dict[str, Any]:
    try:
        shown_key = plain(decode_key(key))
    except StrandlineError:
        shown_key = plain(key)
    return {"key": shown_key, "value": _value(data, form), "partition": partition}


def _value(data: bytes, form: ValueForm) -> Any:
    if form != "auto":
        return show_value(data, form)
    try:
        return plain(MessagePack().loads(data))
    except InvalidRecord:
        return show_value(data)


def _begins(key: Any, prefix: str) -> bool:
    first = key[0] if isinstance(key, list) and key else key
    return not prefix or (isinstance(first, str) and first.startswith(prefix))


def _print_entries(rows: list[dict[str, Any]]) -> None:
    if not rows:
        output.note("no keys")
        return
    fields = list(dict.fromkeys(name for row in rows for name in _fields(row["value"])))
    columns = ["key", *(fields or ["value"])]
    cells = []
    for row in rows:
        values = _fields(row["value"])
        rest = [_rounded(values.get(name)) for name in fields] if fields else [row["value"]]
        cells.append([output.cell(row["key"]), *rest])
    output.table("", columns, cells)


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) and value.keys() != {"base64"} else {}


def _rounded(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        return output.number(value, 3)
    return value
