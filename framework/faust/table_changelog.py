"""Changelog topic of a table in our store: Faust sends each change to it, and nothing is sent.

The store adds a change to the record's unit, and the commit appends it. Faust needs no more of its
own message than the partition, so the key and the value are not encoded again for it.
"""

from __future__ import annotations

from typing import Any

from faust.topics import Topic
from faust.types import TP
from faust.types.tuples import FutureMessage, PendingMessage, RecordMetadata


class ChangelogTopic(Topic):
    """Changelog topic whose records are appended by the commit."""

    def send_soon(
        self,
        *,
        key: Any = None,
        value: Any = None,
        partition: int | None = None,
        **options: Any,
    ) -> FutureMessage:
        """Return a message that counts as sent."""
        message = PendingMessage(self, key, value, partition, None, None, None, None, None)
        sent = FutureMessage(message)
        topic = self.get_topic_name()
        tp = TP(topic, partition or 0)
        sent.set_result(RecordMetadata(topic, tp.partition, tp, -1))
        return sent


def replace_changelog_topic(table: Any) -> None:
    """Give a table a changelog topic to which nothing is sent; one of an app's own class stays.

    Faust's own settings let the log delete a change of a window `expires` after it was written, often
    before the window ends. Windows that have expired are deleted by the table, so no change of a
    window is deleted by its age.
    """
    topic = table.changelog_topic
    if type(topic) is not Topic:
        return
    settings = topic._clone_args()
    if keeps_windows(table):
        settings |= {"compacting": True, "deleting": False, "retention": None}
    table.changelog_topic = ChangelogTopic(**settings)


def keeps_windows(table: Any) -> bool:
    """Return True if the changelog of a table is compacted only; False if the app has settings for it."""
    return table.window is not None and not table.extra_topic_configs
