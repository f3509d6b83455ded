"""Checks for work that an app would leave behind: the pending work of parts that it has no more.

A task keeps its timers in its own store, `<task>-timers`. A renamed task has another store, which
is empty, but its position in the input continues: the old timers would never fire. In the same way
nothing would ever read the records in a repartition topic that has no task any more.
"""

from __future__ import annotations

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.scan import num_unread
from strandline.framework.declarations import Declarations
from strandline.framework.export import committed_batches
from strandline.framework.timers import ClockName, TimerKey
from strandline.statestore.internal_names import CHANGELOG, REPARTITION, TIMERS
from strandline.statestore.keys import key_codec
from strandline.statestore.ownership import InternalTopics

_CLOCKS: tuple[ClockName, ...] = ("stream", "wall")


def check_left_behind(declared: Declarations, broker: Broker, clock: Clock) -> None:
    """Refuse to run an app that has pending timers, or records, of parts that it does not declare.

    Raises:
        InvalidConfig: There are such timers, and `App.drop_task` does not name their task; or there
            are unhandled records in a repartition topic that no task reads.
    """
    internal = InternalTopics(broker, clock)
    for topic in internal.names:
        if topic.startswith(f"{declared.app}-") and (
            problem := left_in(topic, declared, broker, internal)
        ):
            raise InvalidConfig(problem)


def left_in(topic: str, declared: Declarations, broker: Broker, internal: InternalTopics) -> str:
    """Return why an app is refused because of a topic that it does not use; "" if it is not."""
    app, task = declared.app, _task_of(declared.app, topic)
    if (
        not (task or topic.endswith(REPARTITION))
        or topic in declared.internal_topics()
        or internal.app_of(topic, app) != app
    ):
        return ""
    if task is None:
        return _records_left(app, broker, topic)
    return _timers_left(declared, task, broker, topic)


def _records_left(app: str, broker: Broker, topic: str) -> str:
    count = num_unread(broker, app, topic)
    if not count:
        return ""
    return (
        f"app {app!r} has unhandled records in {topic} ({count:,}), and none of its tasks reads it any "
        "more, so they would be lost. Let the version that reads it run once more until it has "
        'handled all records (run(until="idle")), or delete them for good with '
        "`strandline plan MODULE:APP --drop-orphans`"
    )


def _timers_left(declared: Declarations, task: str, broker: Broker, topic: str) -> str:
    pending = _pending(broker, topic)
    if not pending:
        return ""
    known = task in declared.tasks
    why = "has no on_timer any more" if known else "is not declared any more"
    way_out = "give it one" if known else f"if it was renamed, declare it with name={task!r}"
    return (
        f"app {declared.app!r} has {pending} pending timers of task {task!r}, which {why}, so"
        f" they would never fire; {way_out}; if they are not needed, call"
        f" app.drop_task({task!r})"
    )


def _task_of(app: str, topic: str) -> str | None:
    """Return the task whose timers a topic holds, if the app's name begins the topic's name."""
    prefix, suffix = f"{app}-", f"{TIMERS}{CHANGELOG}"
    if not topic.startswith(prefix) or not topic.endswith(suffix):
        return None
    return topic[len(prefix) : -len(suffix)] or None


def _pending(broker: Broker, topic: str) -> int:
    """Return the number of timers that a changelog holds."""
    decode = key_codec(TimerKey).decode
    timers: dict[tuple[int, bytes], bool] = {}
    for batch in committed_batches(broker, topic):
        columns = batch.columns
        values = columns.column("value").is_valid().to_pylist()
        for key, is_set in zip(columns.column("key").to_pylist(), values, strict=True):
            timers[batch.partition, key] = is_set and decode(key)[0] in _CLOCKS
    return sum(timers.values())
