"""`strandline plan MODULE:APP`: an app's declared state and topics, compared with what is deployed.

new        the log has no state or topic of this name
same       the state or topic is as declared
extended   the state is readable, and its declaration becomes wider at the next run; or the topic
           gets more columns
rewritten  values are converted at the next run, by the store's `upgrade`
changed    the app is refused: the reasons are given; of an input also that its tasks are at
           different offsets, and it is not known which of them goes on where
unused     the app declares the store, but in no task's `stores=`; its state is kept
orphaned   the log has state or an internal topic that the app does not declare; with reasons, the
           app is refused, because it would leave behind timers or records
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, SchemaMismatch, UnknownTopic
from strandline.framework import topic_creation
from strandline.framework.cli import output
from strandline.framework.cli.loading import load_app, opened
from strandline.framework.cli.options import JsonOption, LogOption, YesOption, confirmed
from strandline.framework.container.reset import check_at_rest
from strandline.framework.declarations import Declarations
from strandline.framework.left_behind import left_in
from strandline.framework.stream_columns import lacking
from strandline.framework.task_positions import check_positions
from strandline.framework.topic_creation import check_changelog, copartitioned
from strandline.statestore.declaration import (
    Declaration,
    RepartitionRecord,
    compare,
    declaration_of,
)
from strandline.statestore.lost_topics import lost, topic_lost
from strandline.statestore.ownership import InternalTopics
from strandline.statestore.recorded import DeclarationLog, declarations_topic, topic_key
from strandline.statestore.spec import AnySpec

if TYPE_CHECKING:
    from strandline.framework.app import App
    from strandline.framework.task import TaskSpec
    from strandline.framework.topic import Topic

Verdict = Literal["new", "same", "extended", "rewritten", "changed", "unused", "orphaned"]
_VERDICTS: dict[str, Verdict] = {
    "same": "same",
    "wider": "extended",
    "rewrite": "rewritten",
    "refused": "changed",
}

DropOption = Annotated[
    bool, typer.Option("--drop-orphans", help="Delete the topics of orphaned state, for good.")
]


@dataclass(frozen=True)
class PlanLine:
    """One store or internal topic, and what becomes of it."""

    name: str
    """Name of the store, or of the topic if no store is declared for it."""
    verdict: Verdict
    reasons: str
    topic: str
    """Changelog, or internal topic."""


@dataclass(frozen=True)
class TopicLine:
    """One declared topic, and what becomes of it."""

    name: str
    verdict: Verdict
    reasons: str


def plan(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app's code.")],
    drop_orphans: DropOption = False,
    yes: YesOption = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the state and the topics that an app declares with what its log has.

    Nothing is changed unless `--drop-orphans` is given. The exit code is 1 if the app would be
    refused.
    """
    show(load_app(target), log, drop_orphans=drop_orphans, yes=yes, json=json)


def show(app: App, log: str | None, *, drop_orphans: bool, yes: bool, json: bool) -> None:
    """Print the comparison, and delete the orphans if that is asked for; see `plan`."""
    with opened(log if log is not None else str(app.log)) as where:
        gone = lost(app.name, where.broker, SystemClock())
        lines = compared(app, where.broker, gone)
        topics = compared_topics(app, where.broker, gone)
        if json:
            state, shown = ([asdict(line) for line in found] for found in (lines, topics))
            output.document({"app": app.name, "state": state, "topics": shown})
        else:
            _table(f"state of app {app.name}", ("name", "verdict", "reasons", "topic"), lines)
            _table(f"topics of app {app.name}", ("name", "verdict", "reasons"), topics)
        if drop_orphans:
            dropped = _drop(app, where.broker, lines, yes=yes)
            if dropped and not json:
                output.line(f"deleted {dropped} topics")
            lines = [line for line in lines if not (dropped and line.verdict == "orphaned")]
    if any(_is_refused(line) for found in (lines, topics) for line in found):
        raise typer.Exit(1)


def _is_refused(line: PlanLine | TopicLine) -> bool:
    """Return True if the app would be refused because of a line."""
    return line.verdict == "changed" or (line.verdict == "orphaned" and bool(line.reasons))


def _table(title: str, columns: Sequence[str], lines: Sequence[PlanLine | TopicLine]) -> None:
    output.table(title, columns, ([asdict(line)[c] for c in columns] for line in lines))


def command_of(app: App) -> Callable[..., None]:
    """Return the command `plan` of one app."""

    def plan_app(
        drop_orphans: DropOption = False,
        yes: YesOption = False,
        log: LogOption = None,
        json: JsonOption = False,
    ) -> None:
        """Compare the state and the topics that the app declares with what its log has."""
        show(app, log, drop_orphans=drop_orphans, yes=yes, json=json)

    return plan_app


def compared(app: App, broker: Broker, gone: Collection[str]) -> list[PlanLine]:
    """Return the declared stores of an app and the orphans of its log, with their verdicts.

    `gone` are the internal topics that the app has lost.
    """
    tasks = {
        spec.changelog_topic(app.name): (task, spec)
        for task in app.declared.tasks.values()
        for spec in task.all_stores
    }
    specs = {topic: spec for topic, (_, spec) in tasks.items()}
    recorded = DeclarationLog(broker, app.name, SystemClock()).read().stores
    found = [_line(topic, spec, recorded.get(topic)) for topic, spec in specs.items()]
    found = [_kept(line, app.name, gone) for line in found]
    found = [_placed(line, tasks[line.topic][0], broker) for line in found]
    internal = InternalTopics(broker, SystemClock())
    found = [_owned(line, app.name, internal) for line in found]
    kept = {*specs, *app.declared.all_topics, declarations_topic(app.name)}
    others = sorted(topic for topic in internal.of(app.name) if topic not in kept)
    declared = {spec.changelog_topic(app.name): spec.name for spec in _unused(app)}
    unused = [PlanLine(declared[t], "unused", _UNUSED, t) for t in others if t in declared]
    orphans = [
        PlanLine(t, "orphaned", left_in(t, app.declared, broker, internal), t)
        for t in others
        if t not in declared
    ]
    return [*found, *unused, *orphans]


def compared_topics(app: App, broker: Broker, gone: Collection[str]) -> list[TopicLine]:
    """Return the topics of an app, without changelogs, with their verdicts.

    `gone` are the internal topics that the app has lost.
    """
    recorded = DeclarationLog(broker, app.name, SystemClock()).read().topics
    return [
        TopicLine(name, "changed", str(topic_lost(app.name, name)))
        if name in gone
        else _topic_line(app.declared, broker, topic, recorded.get(name))
        for name, topic in sorted(app.declared.all_topics.items())
    ]


def _topic_line(
    declared: Declarations,
    broker: Broker,
    topic: Topic[Any, Any],
    recorded: RepartitionRecord | None,
) -> TopicLine:
    try:
        info = broker.topic(topic.name)
    except UnknownTopic:
        return TopicLine(topic.name, "new", "")
    try:
        difference = topic_creation.compared(topic, info)
    except (InvalidConfig, SchemaMismatch) as error:
        return TopicLine(topic.name, "changed", str(error))
    try:
        check_positions(declared, broker, {topic.name: info})
    except InvalidConfig as error:
        return TopicLine(topic.name, "changed", str(error))
    if problem := lacking(declared.app, broker, topic.name, recorded, topic.stream_columns):
        return TopicLine(topic.name, "changed", problem)
    reasons = f"not applied: {difference.settings}" if difference.settings else ""
    return TopicLine(topic.name, "extended" if difference.adds_columns else "same", reasons)


def _unused(app: App) -> list[AnySpec]:
    """Return the declared stores that no task has."""
    return [store.spec for store in app.declared.stores.values() if store.task is None]


_UNUSED = "declared, but in no task's stores=; leave out its declaration to drop it"


def _line(topic: str, spec: AnySpec, stored: Declaration | None) -> PlanLine:
    if stored is None:
        return PlanLine(spec.name, "new", "", topic)
    change = compare(stored, declaration_of(spec), can_upgrade=spec.upgrade is not None)
    return PlanLine(spec.name, _VERDICTS[change.kind], "; ".join(change.reasons), topic)


def _kept(line: PlanLine, app: str, gone: Collection[str]) -> PlanLine:
    """Return the line of a store; its verdict is "changed" if the changelog was deleted."""
    if line.topic not in gone:
        return line
    return replace(line, verdict="changed", reasons=str(topic_lost(app, line.topic)))


def _placed(line: PlanLine, task: TaskSpec, broker: Broker) -> PlanLine:
    """Return the line of a store; "changed" if its changelog has other partitions than the input."""
    try:
        wanted = copartitioned(task.name, {t.name: _partitions(t, broker) for t in task.inputs})
        check_changelog(broker.topic(line.topic), task.name, wanted)
    except UnknownTopic:
        return line
    except InvalidConfig as error:
        return replace(line, verdict="changed", reasons=str(error))
    return line


def _partitions(topic: Topic[Any, Any], broker: Broker) -> int:
    """Return the number of partitions that a topic has, or will have when it is created."""
    try:
        return broker.topic(topic.name).partitions
    except UnknownTopic:
        sources = [_partitions(source, broker) for source in topic.sources]  # type: ignore[arg-type]
        return topic_creation.partitions_of_new(topic, sources)


def _owned(line: PlanLine, app: str, internal: InternalTopics) -> PlanLine:
    """Return the line of a store; its verdict is "changed" if another app has the changelog."""
    others = [other for other in internal.recorded(line.topic) if other != app]
    if not others:
        return line
    return replace(line, verdict="changed", reasons=f"the changelog is that of app {others[0]!r}")


def _drop(app: App, broker: Broker, lines: list[PlanLine], *, yes: bool) -> int:
    """Delete the topics of orphans, after the user has agreed; return how many."""
    orphans = [line.topic for line in lines if line.verdict == "orphaned"]
    if not orphans:
        return 0
    check_at_rest(broker, app.name)
    if not confirmed(f"delete {', '.join(orphans)} for good?", yes=yes):
        return 0
    # The records go first: a recorded topic that does not exist counts as lost.
    log = DeclarationLog(broker, app.name, SystemClock())
    keys = {key for topic in orphans for key in (topic, topic_key(topic))}
    log.change(lambda recorded: dict.fromkeys(keys.intersection(recorded.keys())))
    for topic in orphans:
        broker.delete_topic(topic)
    return len(orphans)
