"""Draw compaction-*.svg.

`python -m examples.compaction.pictures [FOLDER]`, or `make pictures` for those in docs/.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.compaction.shop import DAY_MS, MINUTE_MS, PartitionSnapshot, Shop
from examples.compaction.svg import Picture

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIDTH, LEFT, RIGHT = 900, 70, 20
BAR_HEIGHT_PX = 34
"""Height of a bar, in pixels."""


def main() -> int:
    """Draw all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    folder.mkdir(parents=True, exist_ok=True)
    head_and_tail(*before_and_after()).save(folder / "compaction-head-and-tail.svg")
    ratio_over_time(minutes()).save(folder / "compaction-dirty-ratio.svg")
    bytes_by_topic(sizes()).save(folder / "compaction-bytes.svg")
    return 0


@contextmanager
def _shop() -> Iterator[Shop]:
    with tempfile.TemporaryDirectory(prefix="strandline-pictures-") as folder:
        shop = Shop(Path(folder) / "log")
        try:
            yield shop
        finally:
            shop.close()


# Head and tail -----------------------------------------------------------------------


def before_and_after(earliest: int = 5) -> tuple[PartitionSnapshot, PartitionSnapshot]:
    """Return a small partition just before and just after the `earliest`-th pass."""
    with _shop() as shop:
        shop.create("prices", segment_bytes="8192")
        passes, last = 0, None
        while True:
            shop.append("prices", shop.changes(40, 12))
            before = shop.snapshot("prices")
            shop.pass_time(MINUTE_MS)
            if shop.status("prices").last != last:
                passes, last = passes + 1, shop.status("prices").last
            if passes == earliest:
                return before, shop.snapshot("prices")


def head_and_tail(before: PartitionSnapshot, after: PartitionSnapshot) -> Picture:
    """Draw the segments along the offsets, before the pass above and after it below.

    Each record is a stroke.
    """
    picture = Picture(WIDTH, 250, "A partition before and after a pass of the cleaner")
    end = before.pieces[-1].end
    scale = (WIDTH - LEFT - RIGHT) / end
    for y, name, shot in ((50, "before", before), (140, "after", after)):
        picture.text(LEFT - 10, y + BAR_HEIGHT_PX / 2 + 5, name, anchor="end")
        for offset in shot.offsets:
            stays = "" if offset in before.survivors else " superseded"
            kind = _kind(shot, offset) + stays
            picture.box(LEFT + offset * scale, y, max(1.0, scale - 0.6), BAR_HEIGHT_PX, kind)
        for piece in shot.pieces:
            x, width = LEFT + piece.base * scale, (piece.end - piece.base) * scale
            picture.box(x, y - 3, width, BAR_HEIGHT_PX + 6, "frame")
            label = "active" if piece.active else f"{piece.size:,} B"
            picture.text(x + width / 2, y - 9, label, anchor="middle", kind="small")
    dirty = LEFT + before.clean_end * scale
    active = LEFT + before.pieces[-1].base * scale
    picture.text((LEFT + dirty) / 2, 24, "tail: clean", anchor="middle")
    picture.text((dirty + active) / 2, 24, "head: dirty", anchor="middle")
    for offset in range(0, end, 50):
        x = LEFT + offset * scale
        picture.line([(x, 190), (x, 195)], "axis")
        picture.text(x, 208, str(offset), anchor="middle", kind="small")
    _legend(
        picture,
        236,
        [
            ("clean", "clean"),
            ("dirty", "dirty, stays"),
            ("dirty superseded", "superseded by a later record of its key"),
            ("active", "active, not cleaned"),
        ],
    )
    return picture


def _kind(shot: PartitionSnapshot, offset: int) -> str:
    if offset >= shot.pieces[-1].base:
        return "active"
    return "clean" if offset < shot.clean_end else "dirty"


# The ratio over time -----------------------------------------------------------------


@dataclass(frozen=True)
class Minute:
    """The log at one minute: after an append, and after the cleaning that was due."""

    ratios: tuple[float, float]
    """Dirty ratio before and after cleaning."""
    appended: int
    """Bytes appended since the beginning."""
    there: int
    """Bytes of the topic's segments."""


def minutes(count: int = 400) -> list[Minute]:
    """Return `count` minutes of a topic in which a thousand keys change."""
    found: list[Minute] = []
    with _shop() as shop:
        shop.create("prices", segment_bytes="32768")
        freed = 0
        last = None
        for _ in range(count):
            shop.append("prices", shop.changes(1_000, 60))
            ratio, appended = shop.status("prices").ratio, shop.bytes_of("prices") + freed
            shop.pass_time(MINUTE_MS)
            status = shop.status("prices")
            if status.last is not None and status.last != last:
                last = status.last
                freed += last.bytes_before - last.bytes_after
            found.append(Minute((ratio, status.ratio), appended, shop.bytes_of("prices")))
    return found


def ratio_over_time(found: list[Minute]) -> Picture:
    """Draw the dirty ratio; below it the bytes in the log, and the bytes ever appended."""
    picture = Picture(WIDTH, 420, "Dirty ratio and size of a topic over time")
    scale = (WIDTH - LEFT - RIGHT) / len(found)
    top, high = 30, 150
    picture.text(LEFT, top - 10, "dirty bytes / all bytes that can be cleaned")
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + high * (1 - part)
        _level(picture, y, f"{part:.2f}", "limit" if part == 0.5 else "axis")
    points = [
        (LEFT + (number + 0.9 * side) * scale, top + high * (1 - ratio))
        for number, minute in enumerate(found)
        for side, ratio in enumerate(minute.ratios)
    ]
    picture.line(points, "line")
    picture.text(
        WIDTH - RIGHT, top - 10, "- - -  min.cleanable.dirty.ratio", anchor="end", kind="small"
    )
    base, high = 380, 140
    largest = max(minute.appended for minute in found)
    picture.text(LEFT, base - high - 15, "bytes: appended in all, and in the log")
    for part in (0.0, 0.5, 1.0):
        _level(picture, base - high * part, _size(largest * part), "axis")
    for kind, heights in (
        ("active superseded", [minute.appended for minute in found]),
        ("clean", [minute.there for minute in found]),
    ):
        edge = [
            (LEFT + number * scale, base - high * size / largest)
            for number, size in enumerate(heights)
        ]
        picture.area([(LEFT, base), *edge, (edge[-1][0], base)], kind)
    picture.text((LEFT + WIDTH - RIGHT) / 2, base + 24, f"{len(found)} minutes", anchor="middle")
    return picture


def _level(picture: Picture, y: float, words: str, kind: str) -> None:
    picture.line([(LEFT, y), (WIDTH - RIGHT, y)], kind)
    picture.text(LEFT - 8, y + 4, words, anchor="end", kind="small")


# Bytes -------------------------------------------------------------------------------

Sizes = dict[str, list[int]]
"""Bytes of each topic: before, after a pass, and after a further day."""

MOMENTS = (
    ("dirty", "before"),
    ("clean", "after a pass"),
    ("active", "a day later, without the tombstones"),
)


def sizes(batches: int = 300) -> Sizes:
    """Return the bytes of several topics, internal ones too: before, after a pass, a day later."""
    with _shop() as shop:
        for topic in ("prices", "profiles"):
            shop.create(topic, segment_bytes="262144", min_cleanable_dirty_ratio="1.0")
        for _ in range(batches):
            shop.append("prices", shop.changes(1_000, 60))
            shop.append("profiles", shop.changes(4_000, 20, deleted=0.4))
            for reader in ("billing", "search"):
                shop.commit_offset(reader, "prices")
        found = {topic: [shop.bytes_of(topic)] for topic in shop.topics()}
        for step in (shop.clean, lambda: shop.pass_time(DAY_MS + MINUTE_MS)):
            step()
            for topic, measured in found.items():
                measured.append(shop.bytes_of(topic))
        return found


def bytes_by_topic(found: Sizes) -> Picture:
    """Draw a bar for each topic and moment."""
    left, row = 150, 22
    picture = Picture(WIDTH, 40 + len(found) * (3 * row + 22), "Bytes of topics before and after")
    scale = (WIDTH - left - 110) / max(max(measured) for measured in found.values())
    y = 14.0
    for topic, measured in found.items():
        picture.text(left - 10, y + 1.5 * row + 4, topic, anchor="end")
        for (kind, _), size in zip(MOMENTS, measured, strict=True):
            picture.box(left, y, max(1.0, size * scale), row - 4, kind)
            picture.text(left + size * scale + 6, y + row - 9, f"{size:,} B", kind="small")
            y += row
        y += 22
    _legend(picture, y + 10, list(MOMENTS))
    return picture


def _legend(picture: Picture, y: float, entries: list[tuple[str, str]]) -> None:
    x = float(LEFT)
    for kind, words in entries:
        picture.box(x, y - 10, 12, 12, kind)
        picture.text(x + 18, y, words, kind="small")
        x += 40 + 6.2 * len(words)


def _size(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())
