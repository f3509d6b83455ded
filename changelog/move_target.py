"""Name of the topic that makes a log the target of a move, apart from the code of moves."""

from __future__ import annotations

from strandline.changelog.broker import Broker
from strandline.changelog.errors import UnknownTopic

JOURNAL_TOPIC = "__strandline_moves"


def is_move_target(broker: Broker) -> bool:
    """Return True if topics of another log were, or are being, copied to this log."""
    try:
        broker.topic(JOURNAL_TOPIC)
    except UnknownTopic:
        return False
    return True
