"""Names of the stores in a log, as app/store."""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidRequest
from strandline.statestore.ownership import InternalTopics
from strandline.statestore.spec import changelog_topic

CHANGELOG = changelog_topic("", "")[1:]
"""Ending of the names of changelogs."""
MAX_NAMED = 20
"""Maximum number of stores that a message lists."""


class StoreName(NamedTuple):
    """Name of an app's store."""

    app: str
    store: str

    @property
    def topic(self) -> str:
        """Name of the store's changelog topic."""
        return changelog_topic(self.app, self.store)

    def __str__(self) -> str:
        return f"{self.app}/{self.store}"


def stores_of(broker: Broker) -> list[StoreName]:
    """Return the stores that have a changelog, sorted by name."""
    internal = InternalTopics(broker, SystemClock())
    return sorted(
        _name(info.name, internal)
        for info in internal.topics
        if info.name.endswith(CHANGELOG) and info.effective.compact
    )


def named_store(broker: Broker, name: str) -> StoreName:
    """Return the store that is called app/store. Raises InvalidRequest."""
    app, slash, store = name.partition("/")
    found = StoreName(app, store)
    # By the topic, because the app of some topics can only be guessed.
    if not slash or found.topic not in {one.topic for one in stores_of(broker)}:
        raise no_such_store(name, broker)
    return found


def no_such_store(name: str, broker: Broker) -> InvalidRequest:
    """Return the error for a name that no store has, with those that are alike."""
    known = list(map(str, stores_of(broker)))
    near = get_close_matches(name, known) or [one for one in known if one.endswith(f"/{name}")]
    if near:
        return InvalidRequest(f"there is no store {name!r}; did you mean {' or '.join(near)}?")
    named = [*known[:MAX_NAMED], *(["…"] if len(known) > MAX_NAMED else [])]
    return InvalidRequest(
        f"there is no store {name!r}; the log has, as app/store: {', '.join(named) or 'none'}"
    )


def _name(topic: str, internal: InternalTopics) -> StoreName:
    """Return the store of a changelog topic. It is a guess if nothing in the log tells the app."""
    whole = topic.removesuffix(CHANGELOG)
    app = internal.app_of(topic) or whole.partition("-")[0]
    return StoreName(app, whole[len(app) + 1 :])
