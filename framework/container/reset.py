"""Deletion of everything that an app has left in its log and its state folder.

A reset may be killed between any two of these steps:

    1  files of the stores                 restored from the changelogs
    2  changelogs, repartition topics      once one is deleted the app does not start
    3  committed offsets                   from here on the app starts with the first record
    4  recorded declarations               until here another reset finds all that is left

So an app that starts after that has lost nothing, has begun again, or is refused with
InternalTopicLost until the reset is repeated.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidRequest, UnknownTopic
from strandline.changelog.records import TopicPartition
from strandline.framework.declarations import Declarations
from strandline.framework.session import Session
from strandline.statestore.ownership import InternalTopics
from strandline.statestore.recorded import declarations_topic


def reset(session: Session, declared: Declarations) -> None:
    """Delete the stores' files, the internal topics and the committed offsets of an app.

    Raises:
        InvalidRequest: The app has running workers; nothing is deleted.
        LogLocked: A store is open; nothing is deleted.
    """
    broker = session.broker()
    check_at_rest(broker, session.app)
    internal = InternalTopics(broker, session.clock)
    names = declared.internal_topics()
    own = [name for name in names if not internal.is_of_another(name, session.app)]
    delete_all(broker, session.app, session.state_folder(), own, broker.committed(session.app))


def delete_all(
    broker: Broker,
    app: str,
    state: Path | None,
    topics: Collection[str],
    offsets: Collection[TopicPartition],
) -> None:
    """Delete what a reset deletes, in the order of this module.

    Args:
        broker: The log.
        app: Name of the app.
        state: Folder of the stores' files; None if it stays.
        topics: Internal topics to delete; those that do not exist are left out.
        offsets: Partitions whose committed offsets are deleted.

    Raises:
        LogLocked: A store is open; nothing is deleted.
    """
    from strandline.statestore.engines.folders import remove_all  # it imports RocksDB

    if state is not None and state.exists():
        remove_all(state)  # first, because it fails if a store is open
    recorded = declarations_topic(app)
    for name in topics:
        if name != recorded:
            _delete(broker, name)
    if offsets:
        broker.commit_offsets(app, dict.fromkeys(offsets))
    if recorded in topics:
        _delete(broker, recorded)


def check_at_rest(broker: Broker, group: str, kind: str = "app") -> None:
    """Raise InvalidRequest if an app, or a group of another kind, has members on any machine."""
    members = broker.describe_group(group).members
    if members:
        who = ", ".join(sorted(member.client or member.member_id for member in members))
        raise InvalidRequest(
            f"{kind} {group!r} is running ({who}); stop it first. A process that was killed leaves the "
            "group at once if the log is a folder; on Kafka, or with STRANDLINE_INSTANCE set, it "
            "leaves after its session timeout"
        )


def _delete(broker: Broker, topic: str) -> None:
    with suppress(UnknownTopic):
        broker.delete_topic(topic)
