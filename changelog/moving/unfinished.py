"""Topics in the target of a move that is not finished.

Their records and the offsets of groups do not fit together yet. An app that started there would
handle records again that are in its state already.
"""

from __future__ import annotations

from collections.abc import Collection

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import MoveUnfinished, UnknownTopic
from strandline.changelog.moving.journal import unfinished


def check_finished(topics: Collection[str], broker: Broker, clock: Clock) -> None:
    """Raise MoveUnfinished if one of the topics is a copy by a move that is not finished.

    Args:
        topics: Names of the topics; those that do not exist are ignored.
        broker: The log.
        clock: Source of time.
    """
    copies = unfinished(broker, clock)
    for name in sorted(copies.keys() & set(topics)):
        if copies[name] in ("", _id_of(name, broker)):
            raise MoveUnfinished(
                f"topic {name!r} is being copied here by a move that is not finished, so its records "
                f"and the committed offsets do not fit together yet. Nothing was changed. Run "
                f"`strandline move` again with the same two logs, to its end; then start this again. "
                f"To do without the copy, delete the topics that were moved, or this log"
            )


def _id_of(topic: str, broker: Broker) -> str | None:
    try:
        return broker.topic(topic).topic_id
    except UnknownTopic:
        return None
