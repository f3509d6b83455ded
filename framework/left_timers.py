"""Check for abandoned timers: those of a task that the app does not declare any more.

A task keeps its timers in its own store, `<task>-timers`. A renamed task has another store, which
is empty, but its position in the input continues: the old timers would never fire.
"""

from __future__ import annotations

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig
from strandline.framework.declarations import Declarations
from strandline.framework.export import committed_batches
from strandline.framework.timers import ClockName, TimerKey
from strandline.statestore.keys import key_codec

_CLOCKS: tuple[ClockName, ...] = ("stream", "wall")


def check_timers(declared: Declarations, broker: Broker) -> None:
    """Refuse to run an app that has pending timers of a task that it does not declare.

    Raises:
        InvalidConfig: There are such timers, and `App.drop_task` does not name their task.
    """
    used = set(declared.internal_topics())
    for topic in broker.topics():
        task = _task_of(declared.app, topic.name)
        if task is None or topic.name in used or _is_of_another(declared.app, topic.name, broker):
            continue
        if pending := _pending(broker, topic.name):
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
    prefix, suffix = f"{app}-", "-timers-changelog"
    if not topic.startswith(prefix) or not topic.endswith(suffix):
        return None
    return topic[len(prefix) : -len(suffix)] or None


def _is_of_another(app: str, topic: str, broker: Broker) -> bool:
    """Return True if the topic may belong to an app with a longer name that has run on this log."""
    longer = [group for group in broker.groups() if group.startswith(f"{app}-")]
    return any(topic.startswith(f"{group}-") for group in longer)


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
