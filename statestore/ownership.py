"""Owners of the internal topics of apps: changelogs, repartition topics, topics of dead letters.

The name of an internal topic begins with the name of its app, and both parts may contain hyphens:
store "eu-x" of app "shop", and store "x" of app "shop-eu", have one changelog by name. So each app
records its internal topics among its declarations, and a topic belongs to the app that has recorded
it. The name decides only for topics that no app has recorded, from earlier versions.
"""

from __future__ import annotations

from collections.abc import Collection

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidConfig, InvalidRequest, NotAuthorized
from strandline.statestore.internal_names import CHANGELOG, DEAD_LETTER, REPARTITION, TIMERS
from strandline.statestore.recorded import SUFFIX, DeclarationLog, declarations_topic

KINDS = (CHANGELOG, REPARTITION, DEAD_LETTER)
"""Endings of the names of internal topics that an app records."""


class InternalTopics:
    """Internal topics of a log, with their apps as recorded when each app was first looked up.

    Recorded declarations are read when they are needed, those of each app once.

    Args:
        broker: The log.
        clock: Source of time.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self.topics = broker.topics()
        """Descriptions of all topics of the log."""
        self.names = [info.name for info in self.topics]
        self._recording = {n.removesuffix(SUFFIX) for n in self.names if n.endswith(SUFFIX)}
        """Apps that have recorded declarations."""
        self._recorded: dict[str, Collection[str]] = {}
        self._apps: Collection[str] | None = None

    def find_apps(self) -> Collection[str]:
        """Return the names that may be those of apps: of groups, and of recorded declarations.

        The log is asked at the first call.
        """
        if self._apps is None:
            self._apps = {*self._broker.groups(), *self._recording}
        return self._apps

    def recorded(self, topic: str) -> list[str]:
        """Return the apps that have recorded a topic: one, or none.

        There may be two if both had used the topic before topics were recorded.
        """
        possible = self._recording.intersection(possible_apps(topic))
        return sorted(app for app in possible if topic in self._topics_of(app))

    def is_of_another(self, topic: str, app: str) -> bool:
        """Return True if another app has recorded a topic, and this app has not."""
        apps = self.recorded(topic)
        return bool(apps) and app not in apps

    def app_of(self, topic: str, asked: str | None = None) -> str | None:
        """Return the app of an internal topic; None if nothing in the log tells.

        Args:
            topic: Name of the topic.
            asked: App that may have no group and no declarations, and is considered too.
        """
        apps = self.recorded(topic)
        if asked in apps or not apps:
            apps = [asked] if asked in apps else self._by_name(topic, asked)
        return max(apps, key=len, default=None)

    def of(self, app: str) -> list[str]:
        """Return an app's changelogs, repartition topics and recorded declarations."""
        own, kinds = declarations_topic(app), (CHANGELOG, REPARTITION)
        names = [name for name in self.names if name.endswith(kinds)]
        found = [name for name in names if self.app_of(name, app) == app]
        return [*found, own] if app in self._recording else found

    def _by_name(self, topic: str, asked: str | None) -> list[str]:
        known = {*self.find_apps()} if asked is None else {*self.find_apps(), asked}
        return [app for app in possible_apps(topic) if app in known]

    def _topics_of(self, app: str) -> Collection[str]:
        if app not in self._recorded:
            try:
                found = DeclarationLog(self._broker, app, self._clock).read()
            except NotAuthorized:  # a token that sees the topic and must not read it
                self._recorded[app] = ()
            else:
                self._recorded[app] = {*found.stores, *found.topics}
        return self._recorded[app]


def possible_apps(topic: str) -> list[str]:
    """Return every name of an app to which an internal topic may belong.

    >>> possible_apps("shop-eu-x-changelog")
    ['shop', 'shop-eu']
    >>> possible_apps("sales")
    []
    """
    kind = next((kind for kind in KINDS if topic.endswith(kind)), None)
    whole = "" if kind is None else topic.removesuffix(kind)
    return [whole[:at] for at, sign in enumerate(whole) if sign == "-" and 0 < at < len(whole) - 1]


def check_named(app: str, topic: str, broker: Broker, clock: Clock) -> None:
    """Refuse to read a changelog as that of an app if another app has recorded it.

    Raises:
        InvalidRequest: Another app has recorded the topic, and the app has not.
    """
    if len(possible_apps(topic)) > 1:
        internal = InternalTopics(broker, clock)
        if internal.is_of_another(topic, app):
            others = internal.recorded(topic)
            names = [described(name, topic) for name in (app, others[0])]
            raise InvalidRequest(
                f"app {app!r} has no {names[0]}: {topic} is the changelog of {names[1]} of app "
                f"{others[0]!r}; read it by that name"
            )


def check_unowned(app: str, topics: Collection[str], broker: Broker, clock: Clock) -> None:
    """Refuse an app one of whose internal topics is that of another app.

    Raises:
        InvalidConfig: Another app has recorded one of the topics.
    """
    if not any(len(possible_apps(topic)) > 1 for topic in topics):
        return
    internal = InternalTopics(broker, clock)
    for topic in topics:
        for other in internal.recorded(topic):
            if other != app:
                raise InvalidConfig(
                    f"topic {topic!r} is internal to app {app!r} by its name, but app {other!r}, "
                    f"whose {described(other, topic)} has the same topic, has recorded it; the two "
                    "would mix their records. Nothing was changed. Give the app, or the "
                    f"{described(app, topic)}, another name. If app {other!r} is not needed any "
                    f"more, `strandline reset {other}` releases the topic"
                )


def described(app: str, topic: str) -> str:
    """Return the part of an app that has an internal topic, in words.

    >>> described("shop", "shop-eu-x-changelog")
    "store 'eu-x'"
    >>> described("shop", "shop-eu-x-timers-changelog")
    "timers of task 'eu-x'"
    """
    rest = topic.removeprefix(f"{app}-")
    for suffix, words in _PARTS.items():
        if rest.endswith(suffix):
            return f"{words} {rest.removesuffix(suffix)!r}"
    return repr(rest)


_PARTS = {
    f"{TIMERS}{CHANGELOG}": "timers of task",
    CHANGELOG: "store",
    REPARTITION: "repartition topic",
    DEAD_LETTER: "task",
}
