"""`strandline move FROM TO`: copy topics, changelogs and committed offsets to another log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from strandline import changelog
from strandline.changelog import moving
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.location import check, is_url
from strandline.changelog.moving import MovedLog, MoveReport, Selection
from strandline.changelog.moving.reading import committed_in
from strandline.changelog.records import TopicPartition
from strandline.framework.cli import logs, output
from strandline.framework.cli.conversions import Forms
from strandline.framework.cli.loading import load_app, location
from strandline.framework.cli.offline import ReadingBar
from strandline.framework.cli.options import JsonOption
from strandline.framework.declarations import check_app_name
from strandline.framework.positions import translated
from strandline.statestore.lost_topics import check_recorded
from strandline.statestore.ownership import InternalTopics
from strandline.statestore.recorded import SUFFIX, declarations_topic

if TYPE_CHECKING:
    from strandline.framework.app import App

SourceArgument = Annotated[
    str, typer.Argument(metavar="FROM", help="The log to move from: a folder, or a URL.")
]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TO", help="The log to move to: a folder (created if necessary), or a URL."
    ),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topics", metavar="A,B", help="Only these topics; with --app, these too. May be repeated."
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="NAME|MODULE:APP",
        help="The topics of an app: inputs, changelogs, repartition topics, and its offsets. With "
        "MODULE:APP also the topics that it only writes to.",
    ),
]


def move(
    source: SourceArgument,
    target: TargetArgument,
    topics: TopicsOption = None,
    app: AppOption = None,
    verify_only: Annotated[
        bool, typer.Option("--verify-only", help="Compare the copy; change nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Move topics and the offsets of their groups to another log, so that apps can continue there.

    Without --topics and --app, everything is moved. Apps must be stopped. The source stays as it
    is. After an interruption, the same command continues. At the end the copy is read and compared.
    """
    named = [name for text in topics or () for name in text.split(",") if name]
    with _opened(source, target) as (here, there):
        selection = _selection(here, named, app)
        _check_not_lost(here, selection)
        work = moving.verify_only if verify_only else moving.move
        with _Bars() as bars:
            report = work(here, there, selection, progress=bars)
    if json:
        output.document(_as_json(report))
    else:
        _show(report, there.name, compared=verify_only)


@contextmanager
def _opened(source: str, target: str) -> Iterator[tuple[MovedLog, MovedLog]]:
    location(source)
    check(target)
    if _same(source, target):
        raise InvalidRequest(f"{source} and {target} are the same log; name another to move to")
    with logs.only_errors(), ExitStack() as closing:
        here = closing.enter_context(changelog.open(source, create=False))
        there = closing.enter_context(changelog.open(target))
        yield MovedLog(source, here.broker), MovedLog(target, there.broker)


def _same(source: str, target: str) -> bool:
    if is_url(source) or is_url(target):
        return source == target
    return Path(source).resolve() == Path(target).resolve()


def _selection(source: MovedLog, topics: list[str], app: str | None) -> Selection:
    """Return the requested selection. Raise InvalidRequest if the source has nothing of the app."""
    loaded = load_app(app) if app is not None and ":" in app else None
    conversions = Forms([] if loaded is None else loaded.declared.all_topics.values())
    if app is None:
        chosen = {*topics, *_declarations_of(source, topics)}
        return Selection(chosen or None, metadata=translated, conversions=conversions)
    name, wanted = _wanted_by(source, app, loaded)
    found = [info.name for info in source.topics() if info.name in wanted]
    if not found:
        known = ", ".join(source.broker.groups()) or "none"
        raise InvalidRequest(f"app {name!r} has left nothing in {source.name}; groups: {known}")
    return Selection({*found, *topics}, [name], translated, conversions)


def _declarations_of(source: MovedLog, topics: Collection[str]) -> list[str]:
    """Return the recorded declarations of the apps whose offsets in these topics are moved.

    With the offsets alone an app would continue in the target, with empty stores. The declarations
    name the state that belongs to the offsets, so that it is refused until its state is there.
    """
    present = {info.name for info in source.topics()}
    apps = [group for group in source.groups() if declarations_topic(group) in present]
    moved = committed_in(source.broker, apps, topics, SystemClock())
    return [declarations_topic(app) for app in moved]


def _wanted_by(source: MovedLog, app: str, loaded: App | None) -> tuple[str, set[str]]:
    """Return the app's name and its topics, as known from its offsets and declarations."""
    name = app if loaded is None else loaded.name
    check_app_name(name)
    read = {tp.topic for tp in source.broker.committed(name)}
    wanted = read | set(InternalTopics(source.broker, SystemClock()).of(name))
    if loaded is not None:
        wanted |= set(loaded.declared.all_topics)
    return name, wanted


def _check_not_lost(source: MovedLog, selection: Selection) -> None:
    """Raise InternalTopicLost if an app to be moved has lost state: the target would not show it."""
    for info in source.topics():
        app = info.name.removesuffix(SUFFIX)
        if app != info.name and (selection.topics is None or info.name in selection.topics):
            check_recorded(app, source.broker, SystemClock())


class _Bars:
    """Progress bar for each phase of a move."""

    def __init__(self) -> None:
        self._doing = ""
        self._shown = ExitStack()
        self._bar: ReadingBar | None = None

    def __call__(self, doing: str, done: int, total: int) -> None:
        if self._bar is None or doing != self._doing:
            self._shown.close()
            self._doing = doing
            self._bar = self._shown.enter_context(ReadingBar(doing, unit="records"))
        self._bar(done, total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()


def _show(report: MoveReport, target: str, *, compared: bool) -> None:
    rows = ([topic.name, len(topic.partitions), topic.records] for topic in report.topics)
    output.table("", ("topic", "partitions", "records"), rows)
    for topic in report.topics:
        for setting, why in topic.left_out.items():
            output.note(f"{topic.name}: {setting} was left out: {why}")
        if not topic.compared:
            output.note(f"{topic.name} was compacted, or has lost old records, since it was moved")
    records = sum(topic.records for topic in report.topics)
    if compared:
        same = sum(topic.records for topic in report.topics if topic.compared)
        output.line(f"{output.number(same)} of {output.number(records)} records compared: the same")
        return
    for group, offsets in report.groups.items():
        output.line(f"group {group} goes on in {_inputs(list(offsets))}")
    output.line(
        f"{output.number(records)} records are in {target} and compared, {output.number(report.copied)} of "
        f"them copied now, in {report.seconds:.1f} s"
    )


def _inputs(partitions: list[TopicPartition]) -> str:
    return ", ".join(sorted({tp.topic for tp in partitions}))


def _as_json(report: MoveReport) -> dict[str, Any]:
    topics = [
        {
            "topic": topic.name,
            "records": topic.records,
            "compared": topic.compared,
            "left_out": topic.left_out,
            "partitions": [
                {
                    "partition": part.partition,
                    "records": part.records,
                    "checksum": part.checksum,
                    "end": part.end,
                }
                for part in topic.partitions
            ],
        }
        for topic in report.topics
    ]
    groups = [
        {"group": group, "topic": tp.topic, "partition": tp.partition, "offset": offset.offset}
        for group, offsets in report.groups.items()
        for tp, offset in sorted(offsets.items())
    ]
    return {
        "topics": topics,
        "groups": groups,
        "copied": report.copied,
        "seconds": round(report.seconds, 3),
    }
