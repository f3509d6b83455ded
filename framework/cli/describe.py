"""`strandline describe`: the parts of an app, or the contents of a log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.location import is_url, shown
from strandline.framework.cli import groups, output
from strandline.framework.cli.loading import load_app, location, opened
from strandline.framework.cli.options import JsonOption, LogOption
from strandline.framework.querying.store_names import stores_of

if TYPE_CHECKING:
    from strandline.framework.app import App


MermaidOption = Annotated[
    bool, typer.Option("--mermaid", help="Print the app's streams as a Mermaid diagram.")
]


def describe(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP|DIR|URL", help="An app's code, or a log; by default the --log."
        ),
    ] = None,
    log: LogOption = None,
    mermaid: MermaidOption = False,
    json: JsonOption = False,
) -> None:
    """Show an app's tasks, streams, topics and stores, or the apps and topics of a log."""
    if mermaid:
        if target is None or _is_log(target):
            raise InvalidConfig(
                "--mermaid draws the streams of an app: describe MODULE:APP --mermaid"
            )
        print_diagram(load_app(target))
    elif target is None:
        describe_log(location(log), json=json)
    elif _is_log(target):
        describe_log(target, json=json)
    else:
        describe_app(load_app(target), json=json)


def _is_log(target: str) -> bool:
    if target.partition(":")[0].endswith(".py"):
        return False
    return is_url(target) or Path(target).is_dir() or os.sep in target.rstrip(os.sep)


def command_of(app: App) -> Callable[..., None]:
    """Return the command `describe` of one app."""

    def describe(mermaid: MermaidOption = False, json: JsonOption = False) -> None:
        """Show the app's tasks, streams, topics and stores."""
        if mermaid:
            print_diagram(app)
        else:
            describe_app(app, json=json)

    return describe


def describe_app(app: App, *, json: bool) -> None:
    """Print the declarations of an app without opening its log."""
    log = shown(str(app.log))
    described: dict[str, Any] = app.describe() | {"log": log, "stores": _stores(app)}
    if json:
        output.document(described)
        return
    facts = ("app", "log", "processing_guarantee", "commit_interval_ms")
    output.facts([(name.replace("_", " "), described[name]) for name in facts])
    _listing("tasks", ("name", "inputs", "stores", "on_error", "handler"), described["tasks"])
    if app.has_streams:
        for text in ["", "streams", *app.plan().describe()]:
            output.line(text)
    _listing("topics", ("name", "partitions", "key", "columns"), described["topics"])
    _listing("stores", ("name", "task", "key", "value", "changelog"), described["stores"])


def print_diagram(app: App) -> None:
    """Print the plan of an app's streams as a diagram in the language of Mermaid."""
    if not app.has_streams:
        raise InvalidConfig(f"app {app.name!r} has no streams to draw; declare one with app.stream")
    for text in app.plan().mermaid().splitlines():
        output.line(text)


def describe_log(log: LogOption, *, json: bool) -> None:
    """Print the contents of a log: apps, their stores, and topics."""
    with opened(log) as where:
        described: dict[str, Any] = {
            "log": log and shown(log),
            "groups": _groups(where.broker),
            "topics": [_topic(info.name, info.partitions) for info in where.broker.topics()],
        }
    if json:
        output.document(described)
        return
    output.facts([("log", described["log"])])
    _listing("apps and other groups", ("group", "reads", "lag", "stores"), described["groups"])
    _listing("topics", ("name", "partitions"), described["topics"])


def _groups(broker: Broker) -> list[dict[str, Any]]:
    stores = stores_of(broker)
    rows = []
    for group in broker.groups():
        positions = groups.positions(broker, group)
        rows.append(
            {
                "group": group,
                "reads": sorted({row["topic"] for row in positions}),
                "lag": sum(row["lag"] for row in positions),
                "stores": [name.store for name in stores if name.app == group],
            }
        )
    return rows


def _topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "partitions": partitions}


def _stores(app: App) -> list[dict[str, Any]]:
    return [
        {
            "name": store.name,
            "task": store.task,
            "key": _type(store.spec.key),
            "value": _type(store.spec.value),
            "changelog": store.changelog_topic,
        }
        for store in app.declared.stores.values()
    ]


def _type(kind: Any) -> str:
    if kind is None:
        return "anything"
    name = getattr(kind, "__name__", None)
    return str(name if isinstance(kind, type) and "[" not in str(kind) else kind)


def _listing(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if rows:
        names = [column.replace("_", " ") for column in columns]
        output.table(title, names, ([_joined(row[c]) for c in columns] for row in rows))


def _joined(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value
