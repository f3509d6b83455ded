"""Refusal of topics whose move to this log is not finished."""

from __future__ import annotations

from collections.abc import Collection

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import NotAuthorized, Unauthenticated
from strandline.changelog.move_target import is_move_target


def check_moved(topics: Collection[str], broker: Broker, clock: Clock) -> None:
    """Raise MoveUnfinished if one of the topics is a copy by a move that is not finished.

    A client whose token may not read the journal of moves is not checked.

    Args:
        topics: Names of the topics; those that do not exist are ignored.
        broker: The log.
        clock: Source of time.
    """
    try:
        if is_move_target(broker):
            # Imported here because few logs are targets, and the module imports pandas.
            from strandline.changelog.moving.unfinished import check_finished

            check_finished(topics, broker, clock)
    except (NotAuthorized, Unauthenticated):
        return
