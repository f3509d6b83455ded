"""The pins of an open log: created, used, released, and removed when they time out.

A pin is a folder: hard links of the segments that hold its ranges, and a document that lists their
content. To create a pin, the links are made first, then the folder is fsynced, then the document is
written (temporary file, fsync, rename, fsync). A document therefore guarantees that all its links
exist. To remove a pin, the document is removed first, durably, then the links. A folder without a
document is left over from a crash, and is removed at the next opening.

A link of the active segment is as good as one of a closed segment, because the bytes below the
pinned end are durable and never change in place.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.extents import pieces_between
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.pin import Pin, PinnedPartition, PinnedPiece, PinReader
from strandline.changelog.embedded.segment import Segment, SegmentPiece
from strandline.changelog.errors import (
    NO_EFFECT_ERRORS,
    REPAIR,
    CorruptLog,
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    StorageFailed,
    UnknownPin,
    UnknownTopic,
)
from strandline.changelog.layout import (
    PIN,
    PINS,
    holder_folder,
    pin_folder,
    pin_link,
    pin_of,
)
from strandline.changelog.pins import (
    MAX_TIMEOUT_MS,
    NAME_PATTERN,
    PinName,
    PinnedRange,
    PinnedRanges,
)
from strandline.changelog.records import Fetched, ReadPosition, TopicPartition
from strandline.changelog.schema import encode_schemas
from strandline.changelog.selection import EVERYTHING, ReadSelection
from strandline.changelog.storage import Storage

PIECE_BYTES = 4 << 20
"""Number of bytes of a segment that are read together."""
RETRY_MS = 60_000
"""Milliseconds after which a failed removal of a pin is tried again."""

_log = logging.getLogger("strandline")

Admin = Callable[[], AbstractContextManager[None]]
"""Acquires the owner's administration lock. Raises OwnerUnavailable if the log is closed."""


Find = Callable[[TopicPartition], Partition]


class KeptPins:
    """Implements `changelog.pins.Pins`.

    Segment files are deleted under the administration lock `admin` too, so none is deleted while a
    pin is created.
    """

    def __init__(self, context: LogContext, find: Find, admin: Admin) -> None:
        self._context = context
        self._storage = context.storage
        self._find = find
        self._admin = admin
        self._reader = PinReader(context.storage)
        self._deadlines: dict[PinName, int] = {}
        """Steady time (ms) at which each pin times out."""
        for name in list(pins_in(self._storage)):
            self._restore(name)
        for holder in self._storage.list_dir(PINS):
            if re.fullmatch(NAME_PATTERN, holder):
                self._remove_empty_holder(holder)

    def hold(
        self, name: PinName, ranges: PinnedRanges, *, timeout_ms: int
    ) -> dict[TopicPartition, PinnedRange]:
        with self._admin():
            _check(name, timeout_ms)
            if name in self._deadlines:
                with contextlib.suppress(UnknownPin):
                    return self._renew(name).ranges()
            pin = self._create(name, ranges, timeout_ms)
            for other in self._pins_of(name.holder):
                if other.since != name.since:
                    self._release(other)
            return pin.ranges()

    def use(self, name: PinName) -> dict[TopicPartition, PinnedRange]:
        with self._admin():
            return self._renew(name).ranges()

    def fetch(
        self,
        name: PinName,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        selection: ReadSelection = EVERYTHING,
    ) -> Fetched:
        if name not in self._deadlines:
            raise _unknown(name)
        try:
            return self._reader.fetch(
                name, partition, offset, max_bytes=max_bytes, selection=selection
            )
        except FileNotFoundError as error:
            raise _unknown(name) from error

    def release(self, holder: str, until: str) -> None:
        with self._admin():
            for name in self._pins_of(holder):
                if name.until == until:
                    self._release(name)

    def tick(self) -> None:
        """Remove pins that have timed out. The caller holds the administration lock."""
        now = self._context.steady_ms()
        for name in [name for name, deadline in self._deadlines.items() if deadline <= now]:
            self._release(name)

    # Registered pins ------------------------------------------------------------------

    def _restore(self, name: PinName) -> None:
        """Register a pin found at opening, or remove what a crash has left of one."""
        left = timeout = 0
        try:
            pin = whole_pin(self._storage, name)
            left, timeout = pin.expires_ms - self._context.clock.now_ms(), pin.timeout_ms
        except FileNotFoundError:
            pass  # a crash interrupted its creation or removal
        except CorruptLog as error:
            _log.warning("pin %s is lost: %s", name, error, extra={"pin": str(name)})
        # Never longer than the pin's timeout, even if the wall clock was set back.
        self._deadlines[name] = self._context.steady_ms() + min(left, timeout)
        if left <= 0:
            self._release(name)

    def _pins_of(self, holder: str) -> list[PinName]:
        return [name for name in self._deadlines if name.holder == holder]

    def _renew(self, name: PinName) -> Pin:
        """Return a pin and restart its timeout.

        The document is saved only when half of the timeout is over, to spare fsyncs.
        """
        if name not in self._deadlines:
            raise _unknown(name)
        try:
            pin = Pin.load(self._storage, name)
        except (FileNotFoundError, CorruptLog) as error:
            self._release(name)
            raise _unknown(name) from error
        now = self._context.clock.now_ms()
        if not now + pin.timeout_ms // 2 <= pin.expires_ms <= now + pin.timeout_ms:
            pin.expires_ms = now + pin.timeout_ms
            pin.save(self._storage, name)
        self._deadlines[name] = self._context.steady_ms() + pin.timeout_ms
        return pin

    # Creation and removal -------------------------------------------------------------

    def _create(self, name: PinName, ranges: PinnedRanges, timeout_ms: int) -> Pin:
        folder, now = pin_folder(name), self._context.clock.now_ms()
        partitions = {tp: self._partition(tp, wanted) for tp, wanted in sorted(ranges.items())}
        schemas = {p.topic_id: encode_schemas(p.schemas.versions) for p in partitions.values()}
        self._remove_folder(folder)  # left by an attempt that failed
        try:
            self._storage.make_dir(folder)
            pinned = [_pin_partition(p, ranges[tp], folder) for tp, p in partitions.items()]
            pin = Pin(now, now + timeout_ms, timeout_ms, schemas, pinned)
            self._storage.sync_dir(folder)
            pin.save(self._storage, name)
        except BaseException:
            with contextlib.suppress(StorageFailed):
                self._remove_folder(folder)
                self._remove_empty_holder(name.holder)
            raise
        self._deadlines[name] = self._context.steady_ms() + timeout_ms
        return pin

    def _partition(self, tp: TopicPartition, wanted: PinnedRange) -> Partition:
        partition = self._find(tp)
        if partition.topic_id != wanted.topic_id:
            raise UnknownTopic(
                f"topic {tp.topic!r} has the id {partition.topic_id}, not {wanted.topic_id}: it was "
                "deleted and created again"
            )
        # Visible records may not be durable yet: commit markers, and with durability "os" all.
        if partition.synced_end < wanted.end:
            partition.sync()
        return partition

    def _release(self, name: PinName) -> None:
        """Remove a pin. If its files cannot be removed now, `tick` tries again later."""
        self._reader.forget()
        try:
            self._remove_folder(pin_folder(name))
            self._remove_empty_holder(name.holder)
            del self._deadlines[name]
        except StorageFailed as error:
            fields = {"pin": str(name), "error": error}
            _log.warning("removing pin %s: %s", *fields.values(), extra=fields)
            self._deadlines[name] = self._context.steady_ms() + RETRY_MS

    def _remove_folder(self, folder: str) -> None:
        """Remove a pin's folder, the document first and durably.

        A document without its links would promise records that are gone.
        """
        storage = self._storage
        if not storage.exists(folder):
            return
        storage.unlink(f"{folder}/{PIN}")
        storage.sync_dir(folder)
        storage.remove_tree(folder)

    def _remove_empty_holder(self, holder: str) -> None:
        if not self._storage.list_dir(holder_folder(holder)):
            self._storage.remove_tree(holder_folder(holder))


def pins_in(storage: Storage) -> Iterator[PinName]:
    """Iterate over all pins in a log folder, complete or not. Other files are ignored."""
    for holder in storage.list_dir(PINS):
        if re.fullmatch(NAME_PATTERN, holder):
            folders = storage.list_dir(holder_folder(holder))
            yield from filter(None, [pin_of(holder, folder) for folder in folders])


def whole_pin(storage: Storage, name: PinName) -> Pin:
    """Load a pin with all its links. Raises CorruptLog.

    Raises FileNotFoundError for a pin whose creation was not completed.
    """
    pin = Pin.load(storage, name)
    if missing := pin.missing(storage, name):
        raise CorruptLog(f"{missing[0]} is missing, one of {len(missing)}")
    return pin


def _check(name: PinName, timeout_ms: int) -> None:
    if not all(re.fullmatch(NAME_PATTERN, part) for part in name):
        raise InvalidRequest(f"a pin's names match {NAME_PATTERN}, got {tuple(name)!r}")
    if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidConfig(
            f"a pin's timeout is 1 to {MAX_TIMEOUT_MS:,} ms (30 days), got {timeout_ms:,}"
        )


def _unknown(name: PinName) -> UnknownPin:
    return UnknownPin(f"there is no pin {name}: it was released, or it timed out")


# Pinned ranges ----------------------------------------------------------------------------


def _pin_partition(partition: Partition, wanted: PinnedRange, folder: str) -> PinnedPartition:
    """Link the files of a range into the pin's folder, and return the positions of its records."""
    storage, (topic, number) = partition.context.storage, partition.topic_partition
    start, end = wanted.start, wanted.end
    with partition.lock:  # segments and aborted transactions must be of the same moment
        ends = partition.offsets()
        if not ends.log_start <= start <= end <= ends.last_stable_offset:
            raise OffsetOutOfRange(
                f"{topic}-{number}: cannot pin offsets {start} to {end}, because committed records "
                f"are at {ends.log_start} to {ends.last_stable_offset}"
            )
        named = ReadPosition(end, wanted.topic_id, wanted.leader_epoch, wanted.incarnation)
        if wanted.incarnation and (problem := ends.divergence(named)):
            raise OffsetOutOfRange(
                f"{topic}-{number}: cannot pin offsets {start} to {end}: {problem}"
            )
        found = list(pieces_between(partition, start, end, PIECE_BYTES))
        aborted = partition.aborted.among(start, end)
    if found:
        found[-1] = found[-1][0], _cut_at(end, *found[-1], storage)
    links = {segment: pin_link(wanted.topic_id, number, segment.name) for segment, _ in found}
    for segment, link in links.items():
        _link(storage, segment.path, f"{folder}/{link}")
    pieces = [PinnedPiece(links[s], one.base_offset, one.start, one.end) for s, one in found]
    return PinnedPartition(topic, wanted.topic_id, number, start, end, pieces, list(aborted))


def _cut_at(end: int, segment: Segment, piece: SegmentPiece, storage: Storage) -> SegmentPiece:
    """Return the piece without its frames from offset `end` on.

    These frames may not be durable yet.
    """
    near = max(piece.start, segment.index.position_of(end))
    for frame in piece._replace(start=near).frames(storage):
        if frame.header.base_offset >= end:
            return piece._replace(end=near + frame.position)
    return piece


def _link(storage: Storage, source: str, target: str) -> None:
    try:
        storage.link(source, target)
    except FileNotFoundError as error:
        raise CorruptLog(f"{source}: the segment is gone; {REPAIR}") from error
    except NO_EFFECT_ERRORS:
        raise
    except StorageFailed as error:
        raise StorageFailed(
            f"{error}; a pin needs a file system with hard links. On other file systems read "
            "without pins (Spark: pinTimeoutMs 0)"
        ) from error
