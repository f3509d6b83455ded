"""The declared stores of an app, compared with the declarations recorded in its log.

    check     before a query reads: recorded values must be readable; nothing is written
    record    before a worker starts: the same, and wider declarations are recorded
    confirm   before a partition is opened: another program may have recorded more meanwhile
    finish    when a partition is restored: its values are rewritten if its declaration requires it

The first program that records a declaration wins: all others are compared with it. A program that
declares less than is recorded is refused, at its start and before it opens a partition. In a
rolling upgrade the workers of the older program therefore keep their partitions, but are assigned
no more once the newer program has started.

The ids of changelogs and repartition topics are recorded too. These steps raise InternalTopicLost
if such a topic was deleted although the app has committed offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

import msgspec

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.records import PartitionOffsets, TopicInfo, TopicPartition
from strandline.framework.stream_columns import DerivedTopic, lacking
from strandline.statestore.declaration import (
    Declaration,
    DeclarationChange,
    RepartitionRecord,
    TopicIds,
    compare,
    declaration_of,
    undeclared,
)
from strandline.statestore.lost_topics import ids_of, is_lost, topic_lost
from strandline.statestore.ownership import check_unowned
from strandline.statestore.recorded import (
    DeclarationLog,
    RecordedDeclarations,
    partition_key,
    topic_key,
    topic_to_bytes,
)
from strandline.statestore.rewriting import rewrite, try_upgrade
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore
from strandline.statestore.undeclared import is_empty, misfits
from strandline.statestore.values import Expiry

NO_TOPICS: Mapping[str, DerivedTopic] = MappingProxyType({})


class StoreDeclarations:
    """Compares the stores of one app with their records. Thread-safe once `record` has returned."""

    def __init__(
        self,
        app: str,
        specs: Sequence[AnySpec],
        infos: Mapping[str, TopicInfo],
        broker: Broker,
        clock: Clock,
        *,
        topics: Mapping[str, DerivedTopic] = NO_TOPICS,
        can_upgrade: bool = True,
    ) -> None:
        """Prepare the comparison, which reads nothing yet.

        Args:
            app: Name of the app.
            specs: Its stores.
            infos: Descriptions of their changelog topics.
            broker: The log.
            clock: Source of time.
            topics: Its other internal topics, which are recorded as well.
            can_upgrade: Whether the program can declare an `upgrade` of stored values.
        """
        self._app = app
        self._can_upgrade = can_upgrade
        self._topics = topics
        self._specs = {spec.changelog_topic(app): spec for spec in specs}
        self._declared = {topic: declaration_of(spec) for topic, spec in self._specs.items()}
        self._partitions = {topic: infos[topic].partitions for topic in self._specs}
        self._broker = broker
        self._clock = clock
        self._log = DeclarationLog(broker, app, clock)
        self._fitting: set[str] = set()
        """Changelogs without a recorded declaration whose values were all found readable."""
        self._replaced: dict[str, bytes | None] = {}
        """Declaration recorded before an incompatible one replaced it, by changelog."""
        self._widened: dict[str, tuple[bytes, bytes]] = {}
        """Recorded declarations that became wider, before and after, by changelog."""
        self._emptied: set[str] = set()
        """Changelogs whose declaration was replaced because there is nothing in them."""
        self._added: dict[str, bytes | None] = {}
        """Removal of everything that `record` has added, if it is taken back."""
        self._tried: dict[str, Mapping[TopicPartition, PartitionOffsets]] = {}
        """Offsets of changelogs whose values `upgrade` has converted in a trial."""
        self._unfinished: set[str] = set()
        """Changelogs with a partition still to be rewritten when one of them was last opened."""

    def check(self) -> dict[str, Expiry]:
        """Compare for a reader; return by changelog whether values carry an expiry.

        Raises InvalidConfig if a stored value cannot be read as declared, or must be rewritten
        first.
        """
        self._check_owned()
        recorded = self._log.read()
        found: dict[str, Expiry] = {}
        for topic in self._specs:
            change = self._change(topic, recorded)
            unfinished = recorded.unfinished(topic, self._partitions[topic])
            if change.kind == "rewrite" or unfinished:
                raise InvalidConfig(
                    f"store {self._specs[topic].name!r}: its values are of an older declaration, and "
                    "are rewritten when the app runs; run it first"
                )
            found[topic] = self._expiry(topic, recorded, change)
        return found

    def record(self) -> None:
        """Compare for a worker, and record declarations that are new or wider than before.

        Raises InvalidConfig, with nothing changed, if a stored value cannot be read as declared.
        """
        if not self._specs and not self._topics:
            return
        self._check_owned()
        self._try_upgrades()
        self._log.change(self._changes)
        try:
            self._check_owned()
        except InvalidConfig:  # an app that has started at the same time
            if added := self._added:
                self._log.change(lambda _: added)
            raise
        # A worker that joined meanwhile may have read the old declaration, and may have left again
        # after filling a store that was empty. Its declaration is restored, and this program fails.
        if self._replaced and (members := self._members()):
            self._restore_replaced(
                f"a worker of another program started ({members}); stop it first"
            )
        if filled := [topic for topic in self._emptied if not self._is_empty(topic)]:
            self._restore_replaced(f"another program filled {', '.join(filled)}")

    def take_back(self) -> None:
        """Record the declarations again that `record` has made wider.

        To be called if the program is refused afterwards, before it has written a value. The older
        program, which runs, could otherwise not start again.
        """
        widened, self._widened = self._widened, {}
        if widened:
            self._log.change(
                lambda recorded: {
                    topic: before
                    for topic, (before, after) in widened.items()
                    if topic in recorded.stores and recorded.stores[topic].to_bytes() == after
                }
            )

    def _restore_replaced(self, event: str) -> NoReturn:
        """Record the replaced declarations again, and raise InvalidConfig because of an event."""
        replaced = self._replaced
        self._log.change(lambda _: replaced)
        raise InvalidConfig(
            f"app {self._app!r}: declarations of stores were changed while {event}; start this "
            "program again"
        )

    def confirm(self, topics: Collection[str]) -> dict[str, Expiry]:
        """Compare these changelogs again, before partitions of them are opened.

        Raises InvalidConfig if another program has recorded something that this one does not
        declare.
        """
        if not topics and not self._topics:
            return {}
        recorded = self._log.read()
        for topic, derived in self._topics.items():
            stored = recorded.topics.get(topic)
            if stored is not None and stored.columns not in (None, derived.columns):
                raise InvalidConfig(self._other_columns(topic, stored.columns, derived.columns))
        found: dict[str, Expiry] = {}
        for topic in topics:
            change = self._change(topic, recorded)
            if change.kind == "rewrite" or change.replaces:
                self._refuse(topic, change)
            found[topic] = self._expiry(topic, recorded, change)
            if recorded.unfinished(topic, self._partitions[topic]):
                self._unfinished.add(topic)
        return found

    def finish(self, store: AnyStore, changelog: TopicPartition) -> None:
        """Rewrite the values of a restored partition, if the recorded declaration requires it.

        A partition that needed no rewriting when it was opened needs none now, because rewriting
        begins only while no worker runs.
        """
        if changelog.topic in self._unfinished and not self._log.read().is_current(changelog):
            rewrite(store, changelog, self._log, self._broker, self._clock)

    # Deciding -------------------------------------------------------------------------

    def _try_upgrades(self) -> None:
        """Convert the values that are to be rewritten, before that is recorded for good."""
        recorded = self._log.read()
        for topic, spec in self._specs.items():
            change = self._change(topic, recorded)
            if change.needs_upgrade:
                self._check_at_rest(topic, change)
                partitions = self._partitions[topic]
                ends = try_upgrade(spec, change.becomes, topic, partitions, self._broker)
                self._tried[topic] = ends

    def _check_tried(self, topic: str) -> None:
        """Refuse a change of values other than those that the trial has converted."""
        tried = self._tried.get(topic, {})
        now = self._broker.offsets(list(tried))
        if not tried or any(now[tp].high_watermark != tried[tp].high_watermark for tp in tried):
            raise InvalidConfig(
                f"store {self._specs[topic].name!r}: another program has changed its values, or how "
                "they are declared, while they were tried with upgrade=; stop it, and start again"
            )

    def _changes(self, recorded: RecordedDeclarations) -> dict[str, bytes | None]:
        changes = self._changes_of_topics(recorded)
        self._replaced, self._widened, self._emptied = {}, {}, set()
        for topic in self._specs:
            stored = recorded.stores.get(topic)
            change = self._change(topic, recorded)
            becomes = change.becomes
            if change.kind == "rewrite" or change.replaces:
                self._check_at_rest(topic, change)
                if change.needs_upgrade:
                    self._check_tried(topic)
                self._replaced[topic] = None if stored is None else stored.to_bytes()
                if change.replaces:
                    self._emptied.add(topic)
            elif becomes.before and not recorded.unfinished(topic, self._partitions[topic]):
                becomes = _with_version(becomes, becomes.version)
                done = (partition_key(tp) for tp in recorded.rewritten if tp.topic == topic)
                changes |= dict.fromkeys(done)
            becomes = msgspec.structs.replace(becomes, changelog_id=self._ids_of(topic))
            if becomes != stored:
                changes[topic] = becomes.to_bytes()
                if stored is not None and topic not in self._replaced:
                    self._widened[topic] = stored.to_bytes(), becomes.to_bytes()
        known, own = recorded.keys(), [*map(topic_key, self._topics), *self._specs]
        self._added |= dict.fromkeys(key for key in own if key not in known)
        return changes

    def _changes_of_topics(self, recorded: RecordedDeclarations) -> dict[str, bytes | None]:
        """Return the changes for internal topics that are no changelogs."""
        changes: dict[str, bytes | None] = {}
        for topic, derived in self._topics.items():
            stored = recorded.topics.get(topic)
            self._check_not_lost(topic, None if stored is None else stored.ids)
            ids = self._ids_of(topic) if derived.has_rows else None
            now = None if ids is None else RepartitionRecord(*ids, derived.columns)
            if topic not in recorded.topics or now != stored:
                changes[topic_key(topic)] = topic_to_bytes(now)
            if now is not None and stored is not None:
                self._check_columns(topic, stored, now)
        return changes

    def _check_columns(self, topic: str, stored: RepartitionRecord, now: RepartitionRecord) -> None:
        """Refuse other columns of a topic while rows may be written or read without some of them."""
        if None in (stored.columns, now.columns) or stored.columns == now.columns:
            return
        if members := self._members():
            problem = self._other_columns(topic, stored.columns, now.columns)
            raise InvalidConfig(f"{problem}; stop all of them first ({members})")
        if problem := lacking(self._app, self._broker, topic, stored, now.columns):
            raise InvalidConfig(problem)

    def _other_columns(self, topic: str, *columns: Collection[str] | None) -> str:
        recorded, declared = (", ".join(one or ()) for one in columns)
        return (
            f"app {self._app!r}: its streams keep {declared} in {topic}, and workers of another version "
            f"run that keep {recorded}"
        )

    def _change(self, topic: str, recorded: RecordedDeclarations) -> DeclarationChange:
        """Return the effect of this declaration on stored values, or raise InvalidConfig."""
        spec, declared = self._specs[topic], self._declared[topic]
        stored = recorded.stores.get(topic)
        if stored is None:
            if self._is_empty(topic):
                return DeclarationChange("wider", declared)
            stored = self._adopted(topic)
        self._check_not_lost(topic, stored.changelog_id)
        change = compare(stored, declared, can_upgrade=spec.upgrade is not None)
        if change.kind == "refused" and not recorded.unfinished(topic, self._partitions[topic]):
            finished = _with_version(stored, stored.version)  # nothing has noted that yet
            change = compare(finished, declared, can_upgrade=spec.upgrade is not None)
        if change.kind in ("refused", "rewrite") and self._is_empty(topic):
            becomes = _with_version(declared, stored.version + 1)
            return DeclarationChange("wider", becomes, change.reasons, replaces=True)
        if change.kind == "refused":
            self._refuse(topic, change)
        return change

    def _adopted(self, topic: str) -> Declaration:
        """Return the declaration for values from before declarations were recorded."""
        spec = self._specs[topic]
        if topic not in self._fitting:
            partitions = self._partitions[topic]
            reason = misfits(spec, self._broker, topic, partitions, self._clock)
            if reason is not None:
                raise InvalidConfig(
                    f"store {spec.name!r} is not what is stored in {topic}: {reason}. Declare it as "
                    f"it was when that was written; {self._ways_out(spec)}"
                )
            self._fitting.add(topic)
        return undeclared(self._declared[topic])

    def _expiry(
        self, topic: str, recorded: RecordedDeclarations, change: DeclarationChange
    ) -> Expiry:
        stored = recorded.stores.get(topic)
        return change.becomes.expiry if stored is None else stored.expiry

    def _check_not_lost(self, topic: str, recorded: TopicIds | None) -> None:
        """Raise InternalTopicLost if a topic is not the recorded one, but offsets need that."""
        lost = recorded is not None and is_lost(recorded, self._ids_of(topic))
        if lost and self._broker.committed(self._app, require_stable=False):
            raise topic_lost(self._app, topic)

    def _ids_of(self, topic: str) -> TopicIds | None:
        return ids_of(self._broker, topic, self._log.topic)

    def _check_owned(self) -> None:
        """Refuse an app with an internal topic that another app has as well."""
        check_unowned(self._app, [*self._specs, *self._topics], self._broker, self._clock)

    def _is_empty(self, topic: str) -> bool:
        return is_empty(self._broker, topic, self._partitions[topic])

    def _check_at_rest(self, topic: str, change: DeclarationChange) -> None:
        """Refuse to rewrite values while workers run: older ones cannot read the new values."""
        if members := self._members():
            reasons = "; ".join(change.reasons) or "they get a time to live"
            raise InvalidConfig(
                f"store {self._specs[topic].name!r}: its declaration is to be replaced ({reasons}), and "
                f"workers of the app run that could not read its values then ({members}); stop all of "
                "them first"
            )

    def _members(self) -> str:
        """Return the workers of the app that are running, here or elsewhere, as text."""
        members = self._broker.describe_group(self._app).members
        return ", ".join(sorted(member.client or member.member_id for member in members))

    def _refuse(self, topic: str, change: DeclarationChange) -> NoReturn:
        spec = self._specs[topic]
        raise InvalidConfig(
            f"store {spec.name!r} is declared otherwise than it is stored in {topic}: "
            f"{'; '.join(change.reasons)}. No state was changed. Declare it as before; or "
            f"{self._ways_out(spec)}"
        )

    def _ways_out(self, spec: AnySpec) -> str:
        reset = f"reset the app (`strandline reset {self._app}`)"
        if spec.definition is not None:
            return f"{reset}, or give it another name, with which it begins empty"
        if not self._can_upgrade:
            return f"{reset}, or give the store another name"
        return (
            f"{reset}, give the store another name, or give it a function upgrade= that converts "
            "old values (for values, not for keys)"
        )


def _with_version(declaration: Declaration, version: int) -> Declaration:
    return msgspec.structs.replace(declaration, version=version, before=None)
