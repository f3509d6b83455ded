"""Columns that streams keep in the topics between two stages, compared with those of before.

Such a topic has the columns that are used after it, and no others. A program that uses more of them
would read unhandled rows of the earlier one with nulls, which filters and aggregates leave out. The
columns that all unhandled rows have are recorded with the declarations, because neither a row nor a
schema says whether a null was written.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.scan import num_unread
from strandline.statestore.declaration import RepartitionRecord


class DerivedTopic(NamedTuple):
    """Internal topic of an app that is not a changelog."""

    has_rows: bool
    """True if it has rows between two tasks of the app."""
    columns: tuple[str, ...] | None = None
    """Columns that streams keep in it, sorted; None if it is no topic of streams."""


def lacking(
    app: str,
    broker: Broker,
    topic: str,
    stored: RepartitionRecord | None,
    columns: tuple[str, ...] | None,
) -> str:
    """Return why a program is refused because of unhandled rows; "" if it is not.

    Args:
        app: Name of the app.
        broker: The log.
        topic: Name of the repartition topic.
        stored: Its record; None if there is none.
        columns: Columns that the program keeps in the topic.
    """
    if stored is None or stored.columns is None or columns is None:
        return ""
    added = sorted({*columns}.difference(stored.columns))
    # Marks have no key.
    count = num_unread(broker, app, topic, keyed=True) if added else 0
    if not count:
        return ""
    return (
        f"app {app!r}: {topic} has unhandled rows ({count:,}) that an earlier version has written "
        f"without {', '.join(added)}, which would count as null. Let that version run once more until "
        'it has handled all records (run(until="idle"))'
    )
