"""Positions of tasks at their start, by their names and by their stores.

Several tasks may read one partition. As long as they are at different offsets, the metadata of the
committed offset has the offset of each task, and which stores it has. A program may then have
renamed a task, moved a store to another one, or changed a stream, whose operators are in other
stages since. A state belongs to the offset of the task that had it:

    a task that has its name          goes on at the offset of that name
    a renamed task                    goes on at the offset of the task whose stores it has
    a new task                        begins at the smallest offset, which is the committed one

A task is refused if these offsets differ, or if it cannot be told which is the right one. That is
checked for all partitions before a worker starts, because a version that has handled records of one
partition, and is refused for another one, cannot be replaced by the earlier version again. It is
decided again when a partition is opened, because its last owner may be an older version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.records import CommittedOffset, TopicInfo, TopicPartition
from strandline.framework.declarations import Declarations
from strandline.framework.positions import KnownTasks, known_tasks, of_present_topics


class PartitionReader(NamedTuple):
    """Task that reads a partition."""

    task: str
    stores: Collection[str]
    """Names of its stores, that of its timers included."""


def check_positions(
    declared: Declarations, broker: Broker, topics: Mapping[str, TopicInfo]
) -> None:
    """Check that the offset of each task is known in all partitions of the inputs among `topics`.

    Args:
        declared: Declared tasks of the app.
        broker: The app's log.
        topics: Topics whose partitions are checked, by name.

    Raises:
        InvalidConfig: The offset of a task in a partition is not known.
    """
    inputs = {topic.name for spec in declared.tasks.values() for topic in spec.inputs}
    asked = {
        TopicPartition(name, number): topics[name]
        for name in sorted(inputs & topics.keys())
        for number in range(topics[name].partitions)
    }
    if asked:
        committed = broker.committed(declared.app, [*asked], require_stable=False)
        for tp, at in sorted(of_present_topics(committed, asked).items()):
            declared_positions(declared, broker, tp, at)


def declared_positions(
    declared: Declarations, broker: Broker, tp: TopicPartition, at: CommittedOffset
) -> dict[str, int]:
    """Return the next offset of each declared task that reads a partition. See `positions_at`."""
    readers = [
        PartitionReader(spec.name, [store.name for store in spec.all_stores])
        for spec in declared.tasks.values()
        if any(topic.name == tp.topic for topic in spec.inputs)
    ]
    has_state = partial(_has_state, declared, broker, tp.partition)
    return positions_at(declared.app, tp, at, readers, declared.dropped, has_state)


def positions_at(
    app: str,
    tp: TopicPartition,
    at: CommittedOffset,
    readers: Sequence[PartitionReader],
    dropped: Collection[str] = (),
    has_state: Callable[[str], bool] = lambda _task: False,
) -> dict[str, int]:
    """Return the next offset of each task that reads a partition.

    Args:
        app: Name of the app.
        tp: The partition.
        at: Committed offset of the partition.
        readers: Tasks that read it now.
        dropped: Names of earlier tasks whose work no task goes on with (`App.drop_task`).
        has_state: Returns True if stores of a task have state of the partition.

    Raises:
        InvalidConfig: The offset of a task is not known.

    >>> from strandline.framework.positions import store_number
    >>> views = TopicPartition("views", 0)
    >>> stores = f'{{"a":[],"b":[{store_number("n")}]}}'
    >>> at = CommittedOffset(5, f'{{"tasks":{{"a":5,"b":7}},"stores":{stores}}}')
    >>> readers = [PartitionReader("a", []), PartitionReader("renamed", ["n"])]
    >>> positions_at("app", views, at, readers)
    {'a': 5, 'renamed': 7}
    """
    known = known_tasks(at.metadata)
    if not known.offsets:
        return {reader.task: at.offset for reader in readers}
    names = {reader.task for reader in readers}
    found: dict[str, int] = {}
    followed: set[str] = set()
    for reader in readers:
        owners = known.owners_of(reader.stores) | ({reader.task} & known.offsets.keys())
        offsets = {known.offsets[owner] for owner in owners}
        if len(offsets) > 1:
            _refuse(app, tp, known, f"task {reader.task!r} has stores of several of them now")
        if not owners and known.stores is None and has_state(reader.task):
            _refuse(app, tp, known, f"task {reader.task!r}, which is new, has stores with state")
        found[reader.task] = offsets.pop() if offsets else at.offset
        followed |= owners
    gone = sorted(known.offsets.keys() - {*names, *followed, *dropped})
    if gone and (known.stores is None or not all(known.has(r.task, r.stores) for r in readers)):
        _refuse(app, tp, known, f"task {gone[0]!r} does not read it any more", gone[0])
    return found


def _has_state(declared: Declarations, broker: Broker, partition: int, task: str) -> bool:
    """Return True if the stores of a task have records in their changelogs."""
    topics = [store.changelog_topic(declared.app) for store in declared.tasks[task].all_stores]
    changelogs = [TopicPartition(topic, partition) for topic in topics]
    found = broker.offsets(changelogs).values() if changelogs else ()
    return any(ends.high_watermark > ends.log_start for ends in found)


def _refuse(
    app: str, tp: TopicPartition, known: KnownTasks, problem: str, gone: str | None = None
) -> NoReturn:
    shown = ", ".join(f"{name!r} at {offset}" for name, offset in sorted(known.offsets.items()))
    dropped = (
        ""
        if gone is None
        else f" If it was not renamed, and no stream was changed, call app.drop_task({gone!r})"
    )
    raise InvalidConfig(
        f"app {app!r}: its tasks are at different offsets of partition {tp} ({shown}), and {problem}: "
        "records would be handled twice or never. Let the last version that had these tasks run until "
        f'all of them have handled all records (run(until="idle")), and this one after that.{dropped}'
    )
