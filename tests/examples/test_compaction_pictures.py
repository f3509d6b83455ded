"""The pictures of docs/compaction.md show the content of the logs that they are drawn from."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from examples.compaction.pictures import (
    before_and_after,
    bytes_by_topic,
    head_and_tail,
    minutes,
    ratio_over_time,
    sizes,
)
from examples.compaction.shop import PartitionSnapshot
from examples.compaction.svg import Picture

SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture: Picture, folder: Path) -> ET.Element:
    picture.save(folder / "picture.svg")
    return ET.parse(folder / "picture.svg").getroot()


def of_class(root: ET.Element, tag: str, kind: str) -> list[ET.Element]:
    return [element for element in root.iter(SVG + tag) if element.get("class") == kind]


def words(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(SVG + "text")]


@pytest.fixture(scope="module")
def snapshots() -> tuple[PartitionSnapshot, PartitionSnapshot]:
    return before_and_after(2)


def test_the_pass_has_left_the_survivors_and_nothing_else(
    snapshots: tuple[PartitionSnapshot, PartitionSnapshot],
) -> None:
    before, after = snapshots
    assert len(before.offsets) > len(after.offsets) > 10
    assert after.offsets == sorted(before.survivors)
    assert before.clean_end < after.clean_end == after.pieces[-1].base == before.pieces[-1].base


def test_each_record_has_a_bar_in_the_picture(
    snapshots: tuple[PartitionSnapshot, PartitionSnapshot], tmp_path: Path
) -> None:
    before, after = snapshots
    root = drawn(head_and_tail(before, after), tmp_path)
    strokes = [
        len([box for box in of_class(root, "rect", kind) if box.get("height") == "34.0"])
        for kind in ("clean", "dirty", "clean superseded", "dirty superseded", "active")
    ]
    assert sum(strokes) == len(before.offsets) + len(after.offsets)
    assert strokes[2] + strokes[3] == len(before.offsets) - len(after.offsets)
    assert len(of_class(root, "rect", "frame")) == len(before.pieces) + len(after.pieces)
    assert f"{before.pieces[0].size:,} B" in words(root)


def test_the_ratio_falls_when_it_has_passed_the_limit(tmp_path: Path) -> None:
    found = minutes(60)
    fell = [number for number, minute in enumerate(found) if minute.ratios[1] < minute.ratios[0]]
    assert len(fell) >= 2
    for number, minute in enumerate(found):
        # The log is cleaned as soon as a segment is closed and the ratio is above a half.
        assert (minute.ratios[0] > 0.5) == (number in fell)
    assert found[-1].appended > found[-1].there > 0
    (line,) = of_class(drawn(ratio_over_time(found), tmp_path), "polyline", "line")
    heights = [float(point.split(",")[1]) for point in (line.get("points") or "").split()]
    assert heights == [
        pytest.approx(180 - 150 * ratio, abs=0.1) for minute in found for ratio in minute.ratios
    ]


def test_the_bars_are_as_long_as_the_topics(tmp_path: Path) -> None:
    found = sizes(6)
    assert set(found) == {"prices", "profiles", "__consumer_offsets", "__transaction_state"}
    for before, after, later in found.values():
        assert before > after >= 0
        assert later < before
    assert found["profiles"][2] < found["profiles"][1], "its tombstones are gone"
    root = drawn(bytes_by_topic(found), tmp_path)
    bars = {box.get("width") for box in root.iter(SVG + "rect") if box.get("height") == "18.0"}
    longest = max(max(sizes_) for sizes_ in found.values())
    for size in (size for sizes_ in found.values() for size in sizes_):
        assert f"{max(1.0, size * 640 / longest):.1f}" in bars
        assert f"{size:,} B" in words(root)


def test_the_same_picture_is_drawn_every_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        bytes_by_topic(sizes(2)).save(tmp_path / name)
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text()


def test_words_are_escaped(tmp_path: Path) -> None:
    picture = Picture(10, 10, "a < b & c")
    picture.text(0, 0, "<&>")
    root = drawn(picture, tmp_path)
    assert words(root) == ["<&>"]
    assert re.match("a < b & c", root[0].text or "")
