"""Check for abandoned timers: those of a task that the app does not declare any more.

A task keeps its timers in its own store, `<task>-timers`. A renamed task has another store, which
is empty, but its position in the input continues: the old timers would never fire.
"""

from __future__ import annotations

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidConfig
from strandline.framework.declarations import Declarations
from strandline.framework.export import committed_batches
from strandline.framework.timers import ClockName, TimerKey
from strandline.statestore.internal_names import CHANGELOG, TIMERS
from strandline.statestore.keys import key_codec
from strandline.statestore.ownership import InternalTopics

_CLOCKS: tuple[ClockName, ...] = ("stream", "wall")


def check_timers(declared: Declarations, broker: Broker, clock: Clock) -> None:
    """Refuse to run an app that has pending timers of a task that it does not declare.

    Raises:
        InvalidConfig: There are such timers, and `App.drop_task` does not name their task.
    """
    app, used = declared.app, set(declared.internal_topics())
    internal = InternalTopics(broker, clock)
    for topic in internal.names:
        task = _task_of(app, topic)
        if task is None or topic in used or internal.app_of(topic, app) != app:
            continue
        if pending := _pending(broker, topic):
            known = task in declared.tasks
            why = "has no on_timer any more" if known else "is not declared any more"
            way_out = (
                "give it one" if known else f"if it was renamed, declare it with name={task!r}"
            )
            raise InvalidConfig(
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
