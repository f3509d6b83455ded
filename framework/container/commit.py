"""The commit of all task instances of a worker; its guarantees are in docs/semantics.md.

Nothing is appended between commits, so a transaction is open only during a commit, even if handlers
take long. A commit has these steps:

    1  stop taking input
    2  let running handlers finish
    3  drain changed state, timers and stream time into batches for the changelogs
    4  flush the outputs into batches, and append all batches in a transaction
    5  add the input offsets to the transaction
    6  commit the transaction
    7  apply the changes to the overlays of the stores
    8  checkpoint the stores that are due

The caller does steps 1 and 2, because it calls between handlers. It also does step 8, because a
checkpoint that fails does not undo the commit. Each guarantee is one function that does steps 3
to 7 in its order:

    exactly_once     outputs, changelog and offsets in one transaction
    at_least_once    outputs and changelog, then offsets: a crash between them repeats records
    at_most_once     offsets, then outputs and changelog: a crash between them loses records

The two weaker guarantees also use a transaction for outputs and changelog. It fences a worker that
was replaced, and a crash repeats or loses whole commits rather than parts of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.changelog.client.asking_again import commit_until_known
from strandline.changelog.client.producer import BatchMetadata, Producer
from strandline.changelog.clock import Clock
from strandline.changelog.groups import GroupMember
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.columns import Outgoing, outgoing, outgoing_to_all
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.instance import TaskInstance
from strandline.framework.options import Guarantee
from strandline.framework.outbox import columns_of
from strandline.framework.positions import InputProgress, to_commit
from strandline.statestore.lost_topics import check_same_changelogs
from strandline.statestore.store import AnyStore

CHECKPOINT_S = 0.05
"""Seconds of a commit in which it checkpoints stores whose interval is over."""


@dataclass
class Committing:
    """Context, producer and member of one commit."""

    context: ContainerContext
    producer: Producer
    member: GroupMember
    """Member in whose name offsets are committed; its group has the name of the app."""


def exactly_once(work: Committing, instances: Sequence[TaskInstance]) -> None:
    """Commit outputs, changelog and input offsets in one transaction."""
    # 3 drain changed state, timers and stream time
    changes = _changes(work, instances)
    # 4 flush the outputs, append all batches
    outputs = _outputs(work, instances)
    work.producer.begin_transaction()
    appended = _append(work, [*changes, *outputs], instances)
    # 5 add the input offsets
    work.producer.send_offsets_to_transaction(offsets_of(instances), work.member)
    # 6 commit
    commit_until_known(work.producer)
    # 7 apply the changes to the overlays
    _apply(work, appended, instances)


def at_least_once(work: Committing, instances: Sequence[TaskInstance]) -> None:
    """Commit outputs and changelog first; then commit the offsets."""
    batches = [*_changes(work, instances), *_outputs(work, instances)]
    appended = _append_without_offsets(work, batches, instances)
    # After a crash the changelog may be ahead of these offsets, so their metadata cannot vouch for
    # the keys in the stores: no store is recorded as placed.
    _commit_offsets(work, instances, placed=False)
    _apply(work, appended, instances)


def at_most_once(work: Committing, instances: Sequence[TaskInstance]) -> None:
    """Commit the offsets first; then commit outputs and changelog."""
    batches = [*_changes(work, instances), *_outputs(work, instances)]
    _commit_offsets(work, instances)
    appended = _append_without_offsets(work, batches, instances)
    _apply(work, appended, instances)


COMMITS: Mapping[Guarantee, Callable[[Committing, Sequence[TaskInstance]], None]] = {
    "exactly_once": exactly_once,
    "at_least_once": at_least_once,
    "at_most_once": at_most_once,
}


def _changes(work: Committing, instances: Sequence[TaskInstance]) -> list[Outgoing]:
    """Drain the changes of each store into a batch for its changelog partition."""
    now = work.context.clock.now_ms()
    changes = []
    for instance in instances:
        instance.before_commit()
        for store in instance.all_stores:
            batch = store.drain()
            if batch is not None:
                instance.placed.check_changed(store, batch.keys)
                changes.append((_changelog(work, instance, store), batch.columns(now), 0))
    return changes


def _outputs(work: Committing, instances: Sequence[TaskInstance]) -> list[Outgoing]:
    batches: list[Outgoing] = []
    for topic in work.context.topics:
        info = work.context.infos[topic.name]
        for sent in columns_of(topic, [instance.outboxes[topic] for instance in instances]):
            send = outgoing_to_all if sent.to_all else outgoing
            batches += send(sent.columns, info, work.producer)
    return batches


def _append(
    work: Committing, batches: Sequence[Outgoing], instances: Sequence[TaskInstance]
) -> dict[TopicPartition, BatchMetadata]:
    """Append the batches in the open transaction; return the last batch of each partition.

    Raises InternalTopicLost if a changelog is no longer the topic from which its store was restored.
    """
    if not batches:
        return {}
    batches_appended = work.producer.append_batches(batches)
    appended = {TopicPartition(batch.topic, batch.partition): batch for batch in batches_appended}
    positions = {
        _changelog(work, instance, store): store.position
        for instance in instances
        for store in instance.all_stores
    }
    check_same_changelogs(work.member.group, work.context.broker, appended, positions)
    return appended


def _append_without_offsets(
    work: Committing, batches: Sequence[Outgoing], instances: Sequence[TaskInstance]
) -> dict[TopicPartition, BatchMetadata]:
    """Append in a transaction of its own, without offsets.

    The log refuses the transaction if the member is fenced: sending no offsets still names it.
    """
    if not batches:
        return {}
    work.producer.begin_transaction()
    appended = _append(work, batches, instances)
    work.producer.send_offsets_to_transaction({}, work.member)
    commit_until_known(work.producer)
    return appended


def _commit_offsets(
    work: Committing, instances: Sequence[TaskInstance], *, placed: bool = True
) -> None:
    """Commit the input offsets outside a transaction."""
    member = work.member
    offsets = offsets_of(instances, placed=placed)
    work.context.broker.commit_offsets(member.group, offsets, member_id=member.member_id)


def offsets_of(
    instances: Sequence[TaskInstance], *, placed: bool = True
) -> dict[TopicPartition, CommittedOffset]:
    """Return the input offsets to commit; with `placed`, their metadata lists placed stores."""
    stores: dict[TopicPartition, dict[str, int]] = {}
    for instance in instances if placed else ():
        if instance.placed.counts:
            stores.setdefault(instance.inputs[0].partition, {}).update(instance.placed.counts)
    progress = (
        InputProgress(
            *(instance.spec.name, source.partition, source.to_commit()),
            instance.window_pending,
            next_timer,
            tuple(store.spec.name for store in instance.all_stores),
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
    """Move committed changes to the stores' overlays, with the changelog offset that they reach."""
    for instance in instances:
        for store in instance.all_stores:
            batch = appended.get(_changelog(work, instance, store))
            if batch is not None:
                store.committed(batch.last_offset + 1, batch.leader_epoch, batch.incarnation)
        instance.after_commit()


def _changelog(work: Committing, instance: TaskInstance, store: AnyStore) -> TopicPartition:
    return TopicPartition(store.spec.changelog_topic(work.member.group), instance.partition)


def checkpoint_if_due(stores: Iterable[AnyStore], clock: Clock) -> None:
    """Do step 8: checkpoint the stores that have enough committed changes or waited long enough.

    Those that need the memory are all checkpointed. The others take turns, so that records do not
    wait for all of them at once: a commit takes the one that has waited longest, and more until
    `CHECKPOINT_S` have passed.
    """
    until = clock.monotonic() + CHECKPOINT_S
    due = sorted((s for s in stores if s.needs_checkpoint), key=lambda s: s.checkpointed_at)
    for number, store in enumerate(due):
        if number == 0 or store.exceeds_memory or clock.monotonic() < until:
            store.checkpoint()
