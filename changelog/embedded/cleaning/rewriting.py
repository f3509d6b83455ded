"""Write the retained records of old segments into new ones.

Large frames whose records are all retained are copied byte for byte, with a new header where it
changed. Records of smaller frames are merged into frames of about 1 MiB, as long as their schema,
leader epoch and delete horizon are the same.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import of_numbers
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
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.errors import StorageFailed
from strandline.changelog.layout import place_of

MERGED_BYTES = 1 << 20
"""Approximate size of a frame of merged records."""
LARGE_BYTES = MERGED_BYTES // 2
"""Minimum size of a frame that is copied unchanged if all of its records are retained."""
WRITE_BACK_BYTES = 1 << 20
"""Bytes written between two write-backs: the fsync of a concurrent commit waits for one of them."""
MAX_WRITE_BACKS = 32
"""Number of write-backs before an fsync, which limits the unwritten bytes on a slow disk."""
NO_LIMIT_MS = 1 << 62
"""No limit on the time that a segment spans, ms."""


class Rewriter:
    """Writes new segments that replace old ones.

    Call `begin` for each old segment, then `add` for each of its frames, in order. `finish` returns
    the new segments: at least one, durable, not in the manifest yet. `written` is called with the
    bytes of each frame.
    """

    def __init__(
        self, partition: Partition, cleaned_end: int, written: Callable[[int], None]
    ) -> None:
        self._partition = partition
        self._place = place_of(f"{partition.folder}/")
        self._cleaned_end = cleaned_end
        self._written = written
        self._gathered = _Gathered()
        self._finished: list[Segment] = []
        self._segment: Segment | None = None
        self._old: list[Segment] = []
        self._written_back = self._synced = 0
        """Bytes of the segment handed to the disk, and bytes of it fsynced."""

    def begin(self, old: Segment) -> None:
        """Start an old segment: its frames are added next."""
        self._old.append(old)

    @property
    def bytes(self) -> int:
        """Bytes written since the last `finish`."""
        open_ = [self._segment] if self._segment else []
        return sum(segment.size for segment in [*self._finished, *open_])

    def add(self, frame: LocatedFrame, fate: FrameFate) -> None:
        """Write or gather the retained records of a frame. Raises CorruptLog, StorageFailed."""
        header, kept = fate.header, fate.kept
        if fate.removed:
            return
        if kept is None and (fate.separate or header.length >= LARGE_BYTES):
            self._flush()
            header = placed(header, self._place)
            body = frame.data[frame.position + HEADER_SIZE : frame.position + header.length]
            self._write(header, [pack_header(header), body])
        elif kept is not None and not len(kept):
            self._flush()
            self._write(*refilled(header, encode_nothing(header), self._place))
        else:
            content = fate.content or content_of(frame, self._partition.schemas)
            columns, offsets = _copy_retained(content, kept)
            if fate.separate:
                self._flush()
                self._write(*self._encoded(header, columns, offsets))
            else:
                self._gather(header, columns, offsets)

    def finish(self) -> list[Segment]:
        """Return the new segments and start over: frames added later go into other segments."""
        self._flush()
        if not self._finished and self._segment is None:  # nothing is retained
            self._segment = self._new_segment(self._old[0].base_offset)
        self._close()
        finished, self._finished, self._old = self._finished, [], []
        # Before the manifest lists the segments, because their names must be durable by then.
        self._partition.context.storage.sync_dir(self._partition.folder)
        return finished

    def keep_old(self) -> None:
        """Forget the old segments begun since the last `finish`; no frame of them was added."""
        self._old = []

    def discard(self) -> None:
        """Remove the segments written since the last `finish`."""
        unlisted = [*self._finished, *([self._segment] if self._segment else [])]
        self._finished, self._segment = [], None
        remove_unlisted(unlisted)

    @property
    def _max_span_ms(self) -> int:
        """Maximum time a segment may span, in ms.

        With retention by time a segment must not be merged with much younger records, because it is
        deleted only once all its records have expired.
        """
        config = self._partition.config
        return config.segment_ms if config.delete else NO_LIMIT_MS

    def _gather(self, header: FrameHeader, columns: pa.RecordBatch, offsets: Offsets) -> None:
        if not self._gathered.takes(header, self._max_span_ms):
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
        """Encode records into a frame; `header` has the other fields."""
        contiguous = len(offsets) == header.last_offset - header.base_offset + 1
        payload = encode(
            columns,
            schema_id=header.schema_id,
            compression=self._partition.config.compression_type,
            log_append_time=bool(header.attributes & Attributes.LOG_APPEND_TIME),
            offsets=None if contiguous else of_numbers(offsets),
        )
        return refilled(header, payload, self._place)

    def _write(self, header: FrameHeader, parts: list[Any]) -> None:
        config = self._partition.config
        segment = self._segment
        if segment is not None and (
            segment.size + header.length > config.segment_bytes
            or header.max_timestamp - segment.first_timestamp > self._max_span_ms
        ):
            self._close()
        if self._segment is None:
            self._segment = self._new_segment(header.base_offset)
        self._segment.append(header, parts, config.index_interval_bytes)
        self._write_back(self._segment)
        self._written(header.length)

    def _write_back(self, segment: Segment) -> None:
        """Hand written bytes to the disk bit by bit, so that the fsync on close is short."""
        if segment.size - self._written_back < WRITE_BACK_BYTES:
            return
        segment.file.write_back(self._written_back)
        self._written_back = segment.size
        if self._written_back - self._synced >= MAX_WRITE_BACKS * WRITE_BACK_BYTES:
            segment.file.sync()
            self._synced = self._written_back

    def _new_segment(self, base_offset: int) -> Segment:
        """Create a segment.

        The first one has the base offset of the first old one. Each takes over the creation time of
        the old segment in which it begins.
        """
        partition = self._partition
        source = bisect_right(self._old, base_offset, key=attrgetter("base_offset")) - 1
        created_ms = self._old[source].created_ms
        name = partition.new_segment_name(
            base_offset if self._finished else self._old[0].base_offset
        )
        self._written_back = self._synced = 0
        return Segment.create(partition.context.storage, partition.folder, name, created_ms)

    def _close(self) -> None:
        """Make the open segment durable, and write its index and aborted index."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._finished.append(segment)
        segment.file.sync()
        segment.save_index()
        self._partition.save_aborted(segment, since=self._cleaned_end)
        segment.release_file()


class _Gathered:
    """Records of several frames that are merged into one."""

    def __init__(self) -> None:
        self._header: FrameHeader | None = None
        self._columns: list[pa.RecordBatch] = []
        self._offsets: list[Offsets] = []
        self.bytes = 0

    def takes(self, header: FrameHeader, max_span_ms: int) -> bool:
        """Return True if the records of a frame can be added; the result may span `longest` ms."""
        first = self._header
        if first is None:
            return True
        if header.max_timestamp - first.base_timestamp > max_span_ms:
            return False
        horizons = {first.delete_horizon, header.delete_horizon} - {NO_HORIZON}
        return len(horizons) < 2 and _merge_key(first) == _merge_key(header)

    def add(self, header: FrameHeader, columns: pa.RecordBatch, offsets: Offsets) -> None:
        first = self._header or as_plain(header)
        horizon = max(first.delete_horizon, header.delete_horizon)
        self._header = first._replace(delete_horizon=horizon)
        self._columns.append(columns)
        self._offsets.append(offsets)
        self.bytes += columns.nbytes

    def merged(self) -> tuple[FrameHeader, pa.RecordBatch, Offsets] | None:
        """Return header, columns and offsets of the merged frame; None if there are no records."""
        if self._header is None:
            return None
        offsets = np.concatenate(self._offsets)
        header = self._header._replace(base_offset=int(offsets[0]), last_offset=int(offsets[-1]))
        return header, pa.concat_batches(self._columns), offsets


def _merge_key(header: FrameHeader) -> tuple[int, int, int]:
    """Return the header fields that must be equal for two frames to be merged."""
    return header.schema_id, header.attributes & ~_IGNORED_ATTRIBUTES, header.leader_epoch


_IGNORED_ATTRIBUTES = Attributes.TRANSACTIONAL | Attributes.OFFSETS | Attributes.CLEANED


def remove_unlisted(segments: Sequence[Segment]) -> None:
    """Remove segments that no manifest lists; ignore errors of the disk."""
    with contextlib.suppress(StorageFailed):  # the next opening removes them as well
        for segment in segments:
            segment.remove()


def _copy_retained(content: FrameContent, kept: Offsets | None) -> tuple[pa.RecordBatch, Offsets]:
    """Return copies of the retained records of a frame and of their offsets.

    The frame's own columns are views of everything that was read with it. A few gathered small
    frames would keep a megabyte each in memory.
    """
    if kept is None:
        return pa.concat_batches([content.columns]), content.offsets.copy()
    return content.columns.take(of_numbers(kept)), content.offsets[kept]
