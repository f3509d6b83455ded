"""Writing what a pass leaves of some segments into new ones.

Frames that are large go over byte for byte, with another header where it changed. Records of smaller
ones are gathered into frames of about a mebibyte, as long as they have the same schema, leader
epoch and horizon.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changelog.embedded.cleaning.offset_map import Offsets
from strandline.changelog.embedded.cleaning.survivors import (
    FrameContent,
    FrameFate,
    as_plain,
    content_of,
)
from strandline.changelog.embedded.format import (
    HEADER_SIZE,
    Attributes,
    FrameHeader,
    pack_header,
    placed,
)
from strandline.changelog.embedded.frame import encode, encode_nothing, refilled
from strandline.changelog.embedded.manifest import NO_HORIZON
from strandline.changelog.embedded.names import place_of
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.errors import StorageFailed

MERGED_BYTES = 1 << 20
"""About how large a frame of gathered records gets."""
LARGE = MERGED_BYTES // 2
"""Bytes from which on a frame is copied as it is, if all of its records stay."""
PIECE = 1 << 20
"""Bytes that are written before the disk is given them: a commit beside it waits for one of these."""
PIECES = 32
"""So many may be on their way, on a disk that is slow."""
FOREVER = 1 << 62


class Rewriter:
    """New segments in the place of old ones.

    `begin` is told of each old one, then `add` of its frames, in order; `finish` gives the new segments, at
    least one, durable and listed nowhere yet. `written` is called with the bytes of each frame.
    """

    def __init__(
        self, partition: Partition, cleaned_end: int, written: Callable[[int], None]
    ) -> None:
        self._partition = partition
        self._place = place_of(f"{partition.folder}/")
        self._cleaned_end = cleaned_end
        self._written = written
        self._gathered = _Gathered()
        self._done: list[Segment] = []
        self._segment: Segment | None = None
        self._old: list[Segment] = []
        self._given = self._synced = 0
        """So many bytes of the segment were given to the disk, and are there."""

    def begin(self, old: Segment) -> None:
        """The frames of an old segment follow."""
        self._old.append(old)

    @property
    def bytes(self) -> int:
        """Written so far."""
        open_ = [self._segment] if self._segment else []
        return sum(segment.size for segment in [*self._done, *open_])

    def add(self, frame: LocatedFrame, verdict: FrameFate) -> None:
        """What stays of a frame. Raises CorruptLog, StorageFailed."""
        header, kept = verdict.header, verdict.kept
        if verdict.gone:
            return
        if kept is None and (verdict.stays_apart or header.length >= LARGE):
            self._flush()
            header = placed(header, self._place)
            body = frame.data[frame.position + HEADER_SIZE : frame.position + header.length]
            self._write(header, [pack_header(header), body])
        elif kept is not None and not len(kept):
            self._flush()
            self._write(*refilled(header, encode_nothing(header), self._place))
        else:
            content = verdict.content or content_of(frame, self._partition.schemas)
            columns, offsets = _kept(content, kept)
            if verdict.stays_apart:
                self._flush()
                self._write(*self._encoded(header, columns, offsets))
            else:
                self._gather(header, columns, offsets)

    def finish(self) -> list[Segment]:
        """The new segments; more may be added after them, to others."""
        self._flush()
        if not self._done and self._segment is None:  # nothing stays
            self._segment = self._new_segment(self._old[0].base_offset)
        self._close()
        done, self._done, self._old = self._done, [], []
        self._partition.environment.storage.sync_dir(self._partition.folder)
        return done

    def leave(self) -> None:
        """Leave the old segments as they are. No frame was added since the last `finish`."""
        self._old = []

    def discard(self) -> None:
        """Remove what was written and is listed nowhere."""
        unlisted = [*self._done, *([self._segment] if self._segment else [])]
        self._done, self._segment = [], None
        remove_unlisted(unlisted)

    @property
    def _longest(self) -> int:
        """How much time a segment may span, in ms: what is deleted by time must not wait for younger records."""
        config = self._partition.config
        return config.segment_ms if config.delete else FOREVER

    def _gather(self, header: FrameHeader, columns: pa.RecordBatch, offsets: Offsets) -> None:
        if not self._gathered.takes(header, self._longest):
            self._flush()
        self._gathered.add(header, columns, offsets)
        if self._gathered.bytes >= min(MERGED_BYTES, self._partition.config.segment_bytes // 2):
            self._flush()

    def _flush(self) -> None:
        merged = self._gathered.merged()
        self._gathered = _Gathered()
        if merged is not None:
            self._write(*self._encoded(*merged))

    def _encoded(
        self, header: FrameHeader, columns: pa.RecordBatch, offsets: Offsets
    ) -> tuple[FrameHeader, list[Any]]:
        """The frame of these records in the place of `header`."""
        follow = len(offsets) == header.last_offset - header.base_offset + 1
        payload = encode(
            columns,
            schema_id=header.schema_id,
            compression=self._partition.config.compression_type,
            log_append_time=bool(header.attributes & Attributes.LOG_APPEND_TIME),
            offsets=None if follow else pa.array(offsets),
        )
        return refilled(header, payload, self._place)

    def _write(self, header: FrameHeader, parts: list[Any]) -> None:
        config = self._partition.config
        segment = self._segment
        if segment is not None and (
            segment.size + header.length > config.segment_bytes
            or header.max_timestamp - segment.first_timestamp > self._longest
        ):
            self._close()
        if self._segment is None:
            self._segment = self._new_segment(header.base_offset)
        self._segment.append(header, parts, config.index_interval_bytes)
        self._write_back(self._segment)
        self._written(header.length)

    def _write_back(self, segment: Segment) -> None:
        """Bring to the disk what was written, bit by bit: not all of it when the segment is closed."""
        if segment.size - self._given < PIECE:
            return
        segment.file.write_back(self._given)
        self._given = segment.size
        if self._given - self._synced >= PIECES * PIECE:
            segment.file.sync()
            self._synced = self._given

    def _new_segment(self, base_offset: int) -> Segment:
        """The first one begins where the old ones do. Each is as old as what it begins with."""
        partition = self._partition
        source = bisect_right(self._old, base_offset, key=attrgetter("base_offset")) - 1
        created_ms = self._old[source].created_ms
        name = partition.new_segment_name(base_offset if self._done else self._old[0].base_offset)
        self._given = self._synced = 0
        return Segment.create(partition.environment.storage, partition.folder, name, created_ms)

    def _close(self) -> None:
        """Make what was written durable, with what a closed segment has beside it."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._done.append(segment)
        segment.file.sync()
        segment.save_index()
        self._partition.save_aborted(segment, since=self._cleaned_end)
        segment.let_go()


class _Gathered:
    """Records of frames that become one."""

    def __init__(self) -> None:
        self._header: FrameHeader | None = None
        self._columns: list[pa.RecordBatch] = []
        self._offsets: list[Offsets] = []
        self.bytes = 0

    def takes(self, header: FrameHeader, longest: int) -> bool:
        """Whether the records of a frame can join those that are there, over `longest` ms at most."""
        first = self._header
        if first is None:
            return True
        if header.max_timestamp - first.base_timestamp > longest:
            return False
        horizons = {first.delete_horizon, header.delete_horizon} - {NO_HORIZON}
        return len(horizons) < 2 and _alike(first) == _alike(header)

    def add(self, header: FrameHeader, columns: pa.RecordBatch, offsets: Offsets) -> None:
        first = self._header or as_plain(header)
        horizon = max(first.delete_horizon, header.delete_horizon)
        self._header = first._replace(delete_horizon=horizon)
        self._columns.append(columns)
        self._offsets.append(offsets)
        self.bytes += columns.nbytes

    def merged(self) -> tuple[FrameHeader, pa.RecordBatch, Offsets] | None:
        """One frame's header and records; None if there are none."""
        if self._header is None:
            return None
        offsets = np.concatenate(self._offsets)
        header = self._header._replace(base_offset=int(offsets[0]), last_offset=int(offsets[-1]))
        return header, pa.concat_batches(self._columns), offsets


def _alike(header: FrameHeader) -> tuple[int, int, int]:
    return header.schema_id, header.attributes & ~_NO_MATTER, header.leader_epoch


_NO_MATTER = Attributes.TRANSACTIONAL | Attributes.OFFSETS | Attributes.CLEANED


def remove_unlisted(segments: Sequence[Segment]) -> None:
    """Remove segments that no manifest lists."""
    with contextlib.suppress(StorageFailed):  # the next opening removes them as well
        for segment in segments:
            segment.remove()


def _kept(content: FrameContent, kept: Offsets | None) -> tuple[pa.RecordBatch, Offsets]:
    """Copies of those records of a frame that stay, and of their offsets.

    The frame's own columns are views of all that was read with it. A few small frames that are
    gathered would keep a megabyte each in memory.
    """
    if kept is None:
        return pa.concat_batches([content.columns]), content.offsets.copy()
    return content.columns.take(pa.array(kept)), content.offsets[kept]
