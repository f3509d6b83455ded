"""Internal topics that were deleted, or deleted and created again: changelogs and repartition topics.

A changelog had the state, and a repartition topic had rows between two tasks. The app's committed
offsets are past the records that made them, so an app that continued would give wrong results. It
is refused instead, in two places:

    at a commit                  by the topic to which the changes of a store were appended
    before a store is opened     by the topic ids that are recorded with the declarations
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import BatchMetadata
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InternalTopicLost, UnknownTopic
from strandline.changelog.records import TopicPartition
from strandline.statestore.declaration import TopicIds
from strandline.statestore.engine import StorePosition
from strandline.statestore.recorded import DeclarationLog


def topic_lost(app: str, topic: str) -> InternalTopicLost:
    """Return the error for an app with committed offsets whose internal topic is not there."""
    return InternalTopicLost(
        f"topic {topic!r} was deleted, or not moved, and with it the state, or the rows between two "
        f"tasks, that belong to the committed offsets of app {app!r}. Nothing was changed. Restore "
        f"the log from a backup; or, if only a part of the app was moved to this log, move the rest "
        f"(`strandline move FROM TO --app {app}`); or run `strandline reset {app}`, and the app "
        f"starts again from the first record; or `strandline reset {app} --changelogs`, and it "
        "continues with empty stores"
    )


def check_recorded(
    app: str, broker: Broker, clock: Clock, topics: Collection[str] | None = None
) -> None:
    """Raise InternalTopicLost if a recorded topic is lost; see `lost`.

    Call it before topics are created.
    """
    if found := lost(app, broker, clock, topics):
        raise topic_lost(app, found[0])


def lost(
    app: str, broker: Broker, clock: Clock, topics: Collection[str] | None = None
) -> list[str]:
    """Return the recorded topics that are lost; none if the app has no committed offsets.

    In a log with a copy of the records, as after a move, the ids mean nothing, but a changelog that
    is absent is lost there too.

    Args:
        app: Name of the app.
        broker: The log.
        clock: Source of time.
        topics: Topics to look at; by default all recorded ones.
    """
    log = DeclarationLog(broker, app, clock)
    recorded = log.read()
    known = {topic: one.changelog_id for topic, one in recorded.stores.items()}
    known |= {topic: one.ids for topic, one in recorded.topics.items() if one is not None}
    wanted = known if topics is None else known.keys() & set(topics)
    found = [one for one in sorted(wanted) if is_lost(known[one], ids_of(broker, one, log.topic))]
    return found if found and broker.committed(app, require_stable=False) else []


def is_lost(recorded: TopicIds | None, found: TopicIds | None) -> bool:
    """Return True if a recorded topic does not exist, or is another topic in the same log."""
    if found is None or recorded is None:
        return found is None
    return found != recorded and found.recorded_in == recorded.recorded_in


def ids_of(broker: Broker, topic: str, recorded_in: str) -> TopicIds | None:
    """Return the ids of a topic and of the one named `recorded_in`; None if one is absent."""
    try:
        return TopicIds(*(broker.topic(name).topic_id for name in (topic, recorded_in)))
    except UnknownTopic:
        return None


def check_same_changelogs(
    app: str,
    broker: Broker,
    appended: Mapping[TopicPartition, BatchMetadata],
    positions: Mapping[TopicPartition, StorePosition | None],
) -> None:
    """Raise InternalTopicLost if changes were appended to another topic than a store was made from.

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
            raise topic_lost(app, tp.topic)
        if batch.incarnation not in ("", position.incarnation):
            unknown[tp] = position
    for tp, ends in (broker.offsets(unknown) if unknown else {}).items():
        if ends.topic_id != unknown[tp].topic_id:
            raise topic_lost(app, tp.topic)
