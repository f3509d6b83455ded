"""The task's commit, for all task instances of a worker at once (protocols.md).

Nothing is appended between commits, so a transaction is open for the commit alone, however
long handlers take. Each guarantee is one function that reads like its list of steps; steps 1
and 2 (stop taking input, let running handlers finish) are the caller's: it calls between
handlers. So is step 8: a checkpoint that fails undoes no commit.

    exactly_once     outputs, changelog and offsets in one transaction
    at_least_once    outputs and changelog, then offsets: a crash between them repeats records
    at_most_once     offsets, then outputs and changelog: a crash between them loses records

The weaker two use a transaction for outputs and changelog too: a worker that was replaced
is fenced by it, and what is repeated or lost is whole commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import commit_until_known
from strandline.changelog.client.producer import BatchMetadata, Producer
from strandline.changelog.groups import GroupMember
from strandline.changelog.records import CommittedOffset, TopicInfo, TopicPartition
from strandline.framework.columns import Outgoing, outgoing
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.outbox import columns_of
from strandline.framework.container.positions import InputProgress, to_commit
from strandline.framework.options import Guarantee
from strandline.framework.topic import Topic
from strandline.statestore.store import AnyStore


@dataclass
class Committing:
    """What a commit works with."""

    broker: Broker
    producer: Producer
    member: GroupMember
    """In whose name offsets are committed; its group is called like the app."""
    topics: Sequence[Topic[Any, Any]]
    infos: Mapping[str, TopicInfo]
    """As the log describes every topic."""
    now_ms: Callable[[], int]


def exactly_once(work: Committing, instances: Sequence[TaskInstance]) -> None:
    """One transaction covers outputs, changelog and input offsets."""
    # 3 dirty state, timers and stream time → changelog
    changes = _changes(work, instances)
    # 4 flush outputs
    outputs = _outputs(work, instances)
    work.producer.begin_transaction()
    appended = _append(work, [*changes, *outputs])
    # 5 input offsets into the transaction
    work.producer.send_offsets_to_transaction(offsets_of(instances), work.member)
    # 6 commit
    commit_until_known(work.producer)
    # 7 apply to the overlay
    _apply(work, appended, instances)


def at_least_once(work: Committing, instances: Sequence[TaskInstance]) -> None:
    """Outputs and changelog are durable before the offsets are."""
    batches = [*_changes(work, instances), *_outputs(work, instances)]
    appended = _append_alone(work, batches)
    # Changes may outlive these offsets in a crash, so the offsets cannot say which keys there are.
    _commit_offsets(work, instances, placed=False)
    _apply(work, appended, instances)


def at_most_once(work: Committing, instances: Sequence[TaskInstance]) -> None:
    """The offsets are durable before outputs and changelog are."""
    batches = [*_changes(work, instances), *_outputs(work, instances)]
    _commit_offsets(work, instances)
    appended = _append_alone(work, batches)
    _apply(work, appended, instances)


COMMITS: Mapping[Guarantee, Callable[[Committing, Sequence[TaskInstance]], None]] = {
    "exactly_once": exactly_once,
    "at_least_once": at_least_once,
    "at_most_once": at_most_once,
}


def _changes(work: Committing, instances: Sequence[TaskInstance]) -> list[Outgoing]:
    """What each store has changed, for its changelog partition."""
    now = work.now_ms()
    changes = []
    for instance in instances:
        instance.before_commit()
        for store in instance.all_stores:
            batch = store.drain()
            if batch is not None:
                instance.placed.look(store, batch.keys)
                changes.append((_changelog(work, instance, store), batch.columns(now), 0))
    return changes


def _outputs(work: Committing, instances: Sequence[TaskInstance]) -> list[Outgoing]:
    batches: list[Outgoing] = []
    for topic in work.topics:
        columns = columns_of(topic, (instance.outboxes[topic] for instance in instances))
        if columns is not None:
            batches += outgoing(columns, work.infos[topic.name], work.producer)
    return batches


def _append(work: Committing, batches: Sequence[Outgoing]) -> dict[TopicPartition, BatchMetadata]:
    """Append; where the last records of each partition went."""
    if not batches:
        return {}
    appended = work.producer.append_batches(batches)
    return {TopicPartition(batch.topic, batch.partition): batch for batch in appended}


def _append_alone(
    work: Committing, batches: Sequence[Outgoing]
) -> dict[TopicPartition, BatchMetadata]:
    """Append in a transaction without offsets; refused if others may hold the partitions by now."""
    if not batches:
        return {}
    work.producer.begin_transaction()
    appended = _append(work, batches)
    work.producer.send_offsets_to_transaction({}, work.member)
    commit_until_known(work.producer)
    return appended


def _commit_offsets(
    work: Committing, instances: Sequence[TaskInstance], *, placed: bool = True
) -> None:
    """Commit positions by themselves."""
    member = work.member
    offsets = offsets_of(instances, placed=placed)
    work.broker.commit_offsets(member.group, offsets, member_id=member.member_id)


def offsets_of(
    instances: Sequence[TaskInstance], *, placed: bool = True
) -> dict[TopicPartition, CommittedOffset]:
    """Where every input goes on after this commit, and, if `placed`, which stores are placed."""
    stores: dict[TopicPartition, dict[str, int]] = {}
    for instance in instances if placed else ():
        if instance.placed.counts:
            stores.setdefault(instance.inputs[0].partition, {}).update(instance.placed.counts)
    progress = (
        InputProgress(
            *(instance.spec.name, source.partition, source.position),
            instance.owes_window,
            next_timer,
        )
        for instance in instances
        for next_timer in (instance.next_stream_timer(),)
        for source in instance.inputs
    )
    return to_commit(progress, stores)


def _apply(
    work: Committing,
    appended: Mapping[TopicPartition, BatchMetadata],
    instances: Sequence[TaskInstance],
) -> None:
    for instance in instances:
        for store in instance.all_stores:
            batch = appended.get(_changelog(work, instance, store))
            if batch is not None:
                store.committed(batch.last_offset + 1, batch.leader_epoch, batch.incarnation)
        instance.after_commit()


def _changelog(work: Committing, instance: TaskInstance, store: AnyStore) -> TopicPartition:
    return TopicPartition(store.spec.changelog_topic(work.member.group), instance.partition)


def checkpoint_if_due(instances: Sequence[TaskInstance]) -> None:
    """Step 8: move to the engines what has waited long enough."""
    for instance in instances:
        for store in instance.all_stores:
            if store.needs_checkpoint:
                store.checkpoint()
