"""`strandline move FROM TO`: copy topics, changelogs and committed offsets to another log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from strandline import changelog
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.location import check, is_url
from strandline.changelog.moving import MovedLog, MoveReport
from strandline.changelog.records import TopicPartition
from strandline.framework import moving
from strandline.framework.cli import logs, output
from strandline.framework.cli.loading import load_app, location
from strandline.framework.cli.offline import ReadingBar
from strandline.framework.cli.options import JsonOption

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
        loaded = load_app(app) if app is not None and ":" in app else None
        declared = () if loaded is None else loaded.declared.all_topics.values()
        name = app if loaded is None else loaded.name
        work = moving.verify_only if verify_only else moving.move
        with _Bars() as bars:
            report = work(here, there, topics=named, app=name, declared=declared, progress=bars)
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
