"""Changelogs that were deleted, or deleted and created again, below the state made from them.

The state is lost then, but the app's committed offsets are past the records that made it. So an app
that continued would give wrong results. It is refused instead, in two places:

    at a commit             by the topic to which the changes were appended
    before a store opens    by the topic id that is recorded with the store's declaration
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import BatchMetadata
from strandline.changelog.errors import ChangelogLost
from strandline.changelog.records import TopicPartition
from strandline.statestore.engine import StorePosition


def changelog_lost(app: str, topic: str) -> ChangelogLost:
    """Return the error for an app with committed offsets whose changelog `topic` was deleted."""
    return ChangelogLost(
        f"changelog {topic!r} was deleted, so it no longer has the state that belongs to the "
        f"committed offsets of app {app!r}. Nothing was changed. Restore the log from a backup; or "
        f"run `strandline reset {app}`, and the app starts again from the first record; or "
        f"`strandline reset {app} --changelogs`, and it continues with empty stores"
    )


def check_same_changelogs(
    app: str,
    broker: Broker,
    appended: Mapping[TopicPartition, BatchMetadata],
    positions: Mapping[TopicPartition, StorePosition | None],
) -> None:
    """Raise ChangelogLost if changes were appended to another topic than a store was made from.

    Call it before the transaction is committed. The log is asked only for partitions with a new
    incarnation, so once after each opening of the log. Kafka reports no incarnation: there a topic
    that was created again is recognised only by its lower offsets.

    Args:
        app: Name of the app.
        broker: The log.
        appended: Last batch of each partition in the open transaction.
        positions: Position of each store, by its changelog partition.
    """
    unknown: dict[TopicPartition, StorePosition] = {}
    for tp, position in positions.items():
        batch = appended.get(tp)
        if batch is None or position is None:
            continue
        if batch.last_offset < position.offset:
            raise changelog_lost(app, tp.topic)
        if batch.incarnation not in ("", position.incarnation):
            unknown[tp] = position
    for tp, ends in (broker.offsets(unknown) if unknown else {}).items():
        if ends.topic_id != unknown[tp].topic_id:
            raise changelog_lost(app, tp.topic)
