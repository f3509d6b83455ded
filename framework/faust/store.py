"""Tables in our engine: `store="strandline://"`.

A table partition is restored from its changelog to the end of everything committed, by position,
before its records are handled. So Faust's own recovery has nothing left to read, whether the
changelog's end was compacted, aborted, or is only a transaction's marker.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import faust.stores.base
from faust.streams import current_event
from faust.tables.sets import SetTable
from faust.types import TP
from mode import Service

from strandline.changelog.errors import InvalidConfig, InvalidRequest, Retriable
from strandline.changelog.location import shown
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.effects import current_unit, expiring_unit, reading_unit
from strandline.framework.faust.log_link import FaustLink, link_for
from strandline.framework.faust.table_backup import PartitionBackups
from strandline.framework.faust.table_changelog import keeps_windows, replace_changelog_topic
from strandline.framework.faust.table_partition import TableNotOwned, TablePartition
from strandline.statestore.engines.folders import remove_all

UPKEEP_S = 1.0
"""Seconds between two rounds of checkpoints and of reading changelogs of standby copies."""


class FaustStore(faust.stores.base.SerializedStore):
    """Store of one Faust table."""

    keeps_its_changelog = True
    """Its changes go to the changelog with the commit, not by Faust's producer."""

    def __init__(self, url: Any, app: Any, table: Any, **options: Any) -> None:
        super().__init__(url, app, table, **options)
        if isinstance(table, SetTable):
            raise InvalidConfig(
                f"table {table.name!r}: SetTable is not supported by store='strandline://', because "
                "Faust changes its sets in memory before the commit; use a Table with lists as "
                "values, and set them again after a change"
            )
        if table.is_global or table.use_partitioner:
            kind = "GlobalTable" if table.is_global else "use_partitioner=True"
            raise InvalidConfig(
                f"table {table.name!r}: {kind} is not supported by store='strandline://' yet; use "
                "a Table whose keys are partitioned as its source topic is"
            )
        app.transport  # noqa: B018 - parses the broker's URL
        link = link_for(app)
        if link is None:
            raise InvalidConfig(
                f"table {table.name!r}: store='strandline://' needs broker='strandline:///path' "
                f"or 'strandline+kafka://host:9092', got {', '.join(shown(str(one)) for one in app.conf.broker)}"
            )
        self.link: FaustLink = link
        self.parts: dict[int, TablePartition] = {}
        self._last_key: tuple[object, bytes] = (object(), b"")
        """The key that was encoded last, and its bytes."""
        replace_changelog_topic(table)  # before Faust declares the topic

    # Reads and writes of agents and views ---------------------------------------------

    def _encode_key(self, key: Any) -> bytes:
        """Return the bytes of a key, encoded once for all uses of one string in a row."""
        known, encoded = self._last_key
        if key is known:
            return encoded
        encoded = super()._encode_key(key)
        if type(key) is str:  # cannot change
            self._last_key = (key, encoded)
        return encoded

    def _get(self, key: bytes) -> bytes | None:
        event: Any = current_event()
        part = self._part_of(event)
        if part is not None:
            return part.get(key, reading_unit(self.link.ledger, event))
        for part in self._actives():
            found = part.committed(key)
            if found is not None:
                return found
        return None

    def _set(self, key: bytes, value: bytes | None) -> None:
        part = self._part_of_event()
        if part is None:
            self._check_partitions()
            raise TableNotOwned(
                f"table {self.table_name!r} can only be changed while handling a record of a "
                "partition that this worker owns"
            )
        # A change that the log would refuse raises here, and not in the commit.
        self.link.check(part.changelog.topic, key, value)
        unit = current_unit(self.link.ledger, self.app)
        if unit is None:
            unit = self.link.ledger.loose()
        if not unit.dead:
            part.put(key, value, unit)

    def _check_partitions(self) -> None:
        """Raise PartitionsMismatch if the topic of the record has got more partitions."""
        event: Any = current_event()
        if event is not None and event.message is not None:
            self.table._verified_source_topics_for_partitions.discard(event.message.topic)
            self.table._verify_source_topic_partitions(event.message.topic)

    def _del(self, key: bytes) -> None:
        if self._part_of_event() is not None:
            self._set(key, None)
            return
        # Windows expire outside of any record.
        unit = expiring_unit(self.link.ledger)
        for part in self._actives():
            if part.get(key, None) is not None:
                part.put(key, None, unit)

    def _iteritems(self) -> Iterator[tuple[bytes, bytes]]:
        part = self._part_of_event()
        if part is not None:
            yield from part.items(reading_unit(self.link.ledger, current_event()))
            return
        for part in self._actives():
            yield from part.items(None, committed=True)

    def _iterkeys(self) -> Iterator[bytes]:
        return (key for key, _ in self._iteritems())

    def _itervalues(self) -> Iterator[bytes | None]:
        return (value for _, value in self._iteritems())

    def _size(self) -> int:
        return sum(1 for _ in self._iteritems())

    def _contains(self, key: bytes) -> bool:
        return self._get(key) is not None

    def update(self, *changes: Any, **named: Any) -> None:
        """Change several keys."""
        for key, value in dict(*changes, **named).items():
            self[key] = value

    def _clear(self) -> None:
        for key in list(self._iterkeys()):
            self._del(key)

    def _part_of_event(self) -> TablePartition | None:
        """Return the partition of the record that is handled now; None outside of agents."""
        return self._part_of(current_event())

    def _part_of(self, event: Any) -> TablePartition | None:
        """Return the partition of an event's record; None without an event, or for a copy."""
        if event is None:
            return None
        part = self.parts.get(event.message.partition)
        return None if part is None or part.is_standby else part

    def _actives(self) -> list[TablePartition]:
        return [part for _, part in sorted(self.parts.items()) if not part.is_standby]

    # Recovery -------------------------------------------------------------------------

    def persisted_offset(self, tp: TP) -> int | None:
        """Return the last changelog offset that the state has; None if it has none."""
        part = self.parts.get(tp.partition)
        return part.end - 1 if part is not None and part.end > 0 else None

    def set_persisted_offset(self, tp: TP, offset: int) -> None:
        """Do nothing: a commit stores the position with its values."""

    def apply_changelog_batch(
        self,
        batch: Iterable[Any],
        to_key: Callable[[Any], Any],
        to_value: Callable[[Any], Any],
    ) -> None:
        """Do nothing: the store reads the changelog itself, by position."""

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Close partitions that were revoked; open and restore the assigned ones."""
        topic = self.table.changelog_topic.get_topic_name()
        assignor = self.app.assignor
        actives = {tp.partition for tp in assignor.assigned_actives() if tp.topic == topic}
        standbys = {tp.partition for tp in assignor.assigned_standbys() if tp.topic == topic}
        standbys -= actives
        for number, part in list(self.parts.items()):
            kept = standbys if part.is_standby else actives
            if number not in kept and self.parts.pop(number, None) is not None:
                await self.link.call(part.close)
        for number in sorted(standbys - self.parts.keys()):
            await self._add(topic, number, standby=True)
        await asyncio.gather(*(self._activate(topic, number) for number in sorted(actives)))
        await self._schedule_expiry()

    async def _add(self, topic: str, number: int, *, standby: bool) -> TablePartition | None:
        """Open a partition; None if the store has stopped, which may come during a rebalance."""
        if self.should_stop:
            return None
        part = await self.link.call_patiently(self._open, topic, number, standby=standby)
        if self.should_stop:
            await asyncio.to_thread(part.close)  # the link may be closed by now
            return None
        if self.table._should_expire_keys():
            part.overlay.undone = functools.partial(self._keep_open, part)
        self.parts[number] = part
        return part

    async def _activate(self, topic: str, number: int) -> None:
        part = self.parts.get(number) or await self._add(topic, number, standby=False)
        if part is None:
            return
        restored = await self.link.call_patiently(part.restore, self.link.broker)
        if restored is not None:
            self.log.info(
                "%s restored: %d records in %.2f s",
                part.changelog,
                restored.records,
                restored.seconds,
            )

    async def _schedule_expiry(self) -> None:
        """Schedule the removal of all windows that the worker has now, and of no others.

        Faust does this only for windows that are written, so those that are restored would stay.
        """
        table = self.table
        if not table._should_expire_keys():
            return
        table._partition_timestamps.clear()
        table._partition_timestamp_keys.clear()
        for part in self._actives():
            for key in await self.link.call(self._keys_of, part):
                table._maybe_set_key_ttl(key, part.changelog.partition)

    def _keep_open(self, part: TablePartition, key: bytes) -> None:
        """Forget the expiry of a window that only a failed record has written."""
        if part.committed(key) is None:
            decoded = self.table._to_key(self._decode_key(key))
            self.table._maybe_del_key_ttl(decoded, part.changelog.partition)

    def _keys_of(self, part: TablePartition) -> list[Any]:
        """Return the committed keys of a windowed table's partition, decoded.

        Raises InvalidConfig for a key without a window, which an earlier version let a table have
        that became windowed later.
        """
        items = part.items(None, committed=True)
        keys = [self.table._to_key(self._decode_key(key)) for key, _ in items]
        for key in keys:
            if not _is_windowed(key):
                raise InvalidConfig(
                    f"table {self.table.name!r} is windowed, and {part.changelog} has the key "
                    f"{key!r} without a window; give the table another name, or reset the app "
                    f"(`strandline reset {self.app.conf.id}`)"
                )
        return keys

    def _open(self, topic: str, number: int, *, standby: bool) -> TablePartition:
        partitions = self.table.partitions or self.app.conf.topic_partitions
        self.link.ensure(topic, partitions, {"cleanup.policy": "compact"})
        if keeps_windows(self.table):
            self.link.keep_latest(topic)  # an earlier version has declared it as Faust does
        if topic in self.link.declared:
            self.link.declared[topic].confirm([topic])
        return TablePartition(
            *(TopicPartition(topic, number), self._folder(number), self.link.clock), standby=standby
        )

    async def need_active_standby_for(self, tp: TP) -> bool:
        """Return True: a standby copy has a folder of its own."""
        return True

    @Service.task
    async def _upkeep(self) -> None:
        """Write checkpoints, and let standby copies follow their changelogs."""
        async for _ in self.itertimer(UPKEEP_S, name="strandline upkeep"):
            for part in list(self.parts.values()):
                if part.is_standby:
                    try:
                        await self.link.call(part.restore, self.link.broker, wait=False)
                    except Retriable as error:
                        self.log.warning("a standby copy of %s waits: %s", part.changelog, error)
                await self.link.call(part.checkpoint_if_due)

    async def on_stop(self) -> None:
        """Close all partitions."""
        await super().on_stop()
        parts, self.parts = list(self.parts.values()), {}
        for part in parts:
            await self.link.call(part.close)

    def reset_state(self) -> None:
        """Remove the table's files. The changelog has everything."""
        root = Path(self.app.conf.tabledir)
        if (root / self.table_name).is_dir():
            remove_all(root)

    async def backup_partition(
        self, tp: TP | int, flush: bool = True, purge: bool = False, keep: int = 1
    ) -> None:
        """Back up the committed state of a partition that this worker has.

        Args:
            tp: The partition, of the table's changelog.
            flush: True to include the newest commits; False for the state as it is on disk.
            purge: True to remove older backups of the partition.
            keep: Number of backups to keep then, at least 1.

        Raises:
            InvalidRequest: The worker does not have the partition, or it has no state yet.
            StorageFailed: The files cannot be written.
        """
        number = _number_of(tp)
        part = self.parts.get(number)
        if part is None:
            raise InvalidRequest(
                f"table {self.table_name!r}: partition {number} is not on this worker, which has "
                f"{sorted(self.parts)}"
            )
        backups = self._backups(number)
        await self.link.call(part.back_up, backups, flush=flush)
        if purge:
            await self.link.call(backups.keep_newest, keep)

    def restore_backup(self, tp: TP | int, latest: bool = True, backup_id: int = 0) -> None:
        """Replace the state of a partition by a backup, before the worker starts.

        The worker then replays only what the changelog has got since the backup.

        Args:
            tp: The partition, of the table's changelog.
            latest: True for the newest backup.
            backup_id: Number of the backup otherwise; they are counted from 1.

        Raises:
            InvalidRequest: There is no such backup.
            LogLocked: A worker has the partition open.
        """
        number = _number_of(tp)
        self._backups(number).restore(self._folder(number), None if latest else backup_id)

    def _backups(self, number: int) -> PartitionBackups:
        return PartitionBackups(Path(self.app.conf.appdir), self.table_name, number)

    def _folder(self, number: int) -> Path:
        return Path(self.app.conf.tabledir) / self.table_name / str(number)


def _number_of(tp: TP | int) -> int:
    return tp if isinstance(tp, int) else tp.partition


def _is_windowed(key: Any) -> bool:
    """Return True if a decoded key is `(key, (start, end))`."""
    match key:
        case (_, (float() | int(), float() | int())):
            return True
    return False
