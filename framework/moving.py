"""Move apps between logs: their topics, state and positions belong together.

`changelog.moving` copies topics and the committed offsets of groups, and knows nothing of apps. Here
the parts of apps are added to what is to be moved, so that an app continues in the target where it
stopped, or is refused there. `strandline move` does the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from strandline.changelog import moving
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.moving import MovedLog, MoveReport, Progress, Selection
from strandline.changelog.moving.journal import Journal
from strandline.changelog.moving.reading import committed_in
from strandline.framework.conversions import Forms
from strandline.framework.declarations import check_app_name
from strandline.framework.positions import translated
from strandline.framework.topic import Topic
from strandline.statestore.lost_topics import check_recorded
from strandline.statestore.ownership import InternalTopics
from strandline.statestore.recorded import SUFFIX, declarations_topic


def move(
    source: MovedLog,
    target: MovedLog,
    *,
    topics: Collection[str] = (),
    app: str | None = None,
    declared: Iterable[Topic[Any, Any]] = (),
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> MoveReport:
    """Move topics and the offsets of their groups to another log, so that apps continue there.

    The source is not changed. Apps must be stopped. After an interruption the same call continues.

    Args:
        source: The log to move from.
        target: The log to move to.
        topics: Names of the topics to move; all topics and groups if `app` is None too. If offsets
            of an app are moved with them, its recorded declarations are as well, and so are those
            of its topics that were moved to this target before.
        app: Name of an app whose inputs, changelogs, repartition topics and offsets are moved.
        declared: Declared topics, `app.declared.all_topics.values()`, by which typed values are
            converted between a folder and Kafka. With `app` they are moved too.
        progress: Called with the current step, the offsets done, and the total offsets.
        clock: Clock of the process; the system's by default.

    Returns:
        The topics in the target with their checksums, and the committed offsets.

    Raises:
        InternalTopicLost: An app to be moved has lost a part of its state.
        InvalidRequest: A topic or group is in use, or the copy cannot be continued.
        CorruptLog: The copy differs from the records read.
        StrandlineError: Any other error of the two logs.
    """
    selection = _selection(source, target, topics, app, declared, clock or SystemClock())
    return moving.move(source, target, selection, clock=clock, progress=progress)


def verify_only(
    source: MovedLog,
    target: MovedLog,
    *,
    topics: Collection[str] = (),
    app: str | None = None,
    declared: Iterable[Topic[Any, Any]] = (),
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> MoveReport:
    """Compare moved topics with the target; change nothing. The arguments are those of `move`.

    Raises:
        CorruptLog: The target differs from what was moved.
        InvalidRequest: A topic was not moved.
    """
    selection = _selection(source, target, topics, app, declared, clock or SystemClock())
    return moving.verify_only(source, target, selection, clock=clock, progress=progress)


def _selection(
    source: MovedLog,
    target: MovedLog,
    topics: Collection[str],
    app: str | None,
    declared: Iterable[Topic[Any, Any]],
    clock: Clock,
) -> Selection:
    """Return what is to be moved. Raises InternalTopicLost, InvalidRequest."""
    known = list(declared)
    conversions = Forms(known)
    if app is None:
        chosen = _with_parts(source, target, topics, clock) if topics else None
        selection = Selection(chosen, metadata=translated, conversions=conversions)
    else:
        check_app_name(app)
        read = {tp.topic for tp in source.broker.committed(app)}
        internal = InternalTopics(source.broker, clock).of(app)
        wanted = {*read, *internal, *(topic.name for topic in known)}
        found = [info.name for info in source.topics() if info.name in wanted]
        if not found:
            groups = ", ".join(source.broker.groups()) or "none"
            raise InvalidRequest(f"app {app!r} has left nothing in {source.name}; groups: {groups}")
        selection = Selection({*found, *topics}, [app], translated, conversions)
    _check_not_lost(source, selection, clock)
    return selection


def _with_parts(
    source: MovedLog, target: MovedLog, topics: Collection[str], clock: Clock
) -> set[str]:
    """Return topics together with the parts of apps that must be moved with them.

    With its offsets alone an app would continue in the target with empty stores. Its declarations
    name the state that belongs to the offsets, so that it is refused until its state is there.

    A part that was moved before is as old as that move. Beside a part that is moved now it would
    be of another moment: a store without records that the offsets have passed, for example.
    """
    present = {info.name: info.topic_id for info in source.topics()}
    apps = [group for group in source.groups() if declarations_topic(group) in present]
    offsets = committed_in(source.broker, apps, present, clock)
    inputs = {app: {tp.topic for tp in of_app} for app, of_app in offsets.items()}
    internal = InternalTopics(source.broker, clock)
    parts = {app: {*read, *internal.of(app)} for app, read in inputs.items()}
    copied = _copied(target, present, clock)
    chosen, before = set(topics), set[str]()
    while chosen != before:  # an added input may be that of another app as well
        before = set(chosen)
        for app, read in inputs.items():
            if parts[app] & chosen:
                chosen |= parts[app] & copied
            if read & chosen:
                chosen.add(declarations_topic(app))
    return chosen


def _copied(target: MovedLog, present: dict[str, str], clock: Clock) -> set[str]:
    """Return the topics, given with their ids in the source, of which the target has copies."""
    there = {info.name: info.topic_id for info in target.broker.topics()}
    states = Journal(target.broker, clock).state.topics
    return {
        name
        for name, topic_id in present.items()
        if name in there and topic_id in states and states[topic_id].target_id in ("", there[name])
    }


def _check_not_lost(source: MovedLog, selection: Selection, clock: Clock) -> None:
    """Raise InternalTopicLost if an app to be moved has lost state: the target would not show it."""
    for info in source.topics():
        app = info.name.removesuffix(SUFFIX)
        if app != info.name and (selection.topics is None or info.name in selection.topics):
            check_recorded(app, source.broker, clock)
