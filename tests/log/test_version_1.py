"""A log written with format version 1 opens, reads, and continues with version 2."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import TopicPartition
from tests.log.kit import Client, World

OLD = Path(__file__).parent / "version_1.zip"
PARTITIONS = [("plain", 0), ("plain", 1), ("compacted", 0), ("typed", 0)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """The old log, in its own folder."""
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(tmp_path)
    return World(LocalStorage(tmp_path))


@pytest.fixture
def expected() -> dict[str, list[Any]]:
    with zipfile.ZipFile(OLD) as archive:
        found: dict[str, list[Any]] = json.loads(archive.read("expected.json"))
        return found


def read(world: World) -> dict[str, list[Any]]:
    return {
        f"{topic}-{number}": [
            value.decode() if isinstance(value, bytes) else value
            for value in world.values(topic, number)
        ]
        for topic, number in PARTITIONS
    }


def versions(world: World, topic: str) -> list[set[int]]:
    """Return the versions of the frames in each segment of partition 0."""
    segments = world.owner._log.catalog.get(topic).partition(0).segments
    return [{header.version for header in segment.headers()} for segment in segments]


def test_old_records_are_read(world: World, expected: dict[str, list[Any]]) -> None:
    assert versions(world, "plain") == [{1}, {1}, {1}]
    assert read(world) == expected
    assert world.owner.committed("group")[TopicPartition("plain", 0)].offset == 5
    world.owner.close()


def test_new_frames_follow_old_ones_in_the_same_segment(
    world: World, expected: dict[str, list[Any]]
) -> None:
    client, tx = Client(world), Client(world, "tx")
    for topic, number in PARTITIONS[:2]:
        client.append(b"new", topic=topic, partition=number, key=b"new")
        tx.append(b"new tx", topic=topic, partition=number, key=b"new tx")
        expected[f"{topic}-{number}"] += ["new", "new tx"]
    tx.commit()
    assert versions(world, "plain")[-1] == {1, 2}
    assert read(world) == expected
    world.reopen()
    assert read(world) == expected
    world.owner.close()
    report = check_log(world.storage, clock=world.clock).report
    assert [one for one in report.findings if one.severity != Severity.NOTE] == []


def test_the_cleaner_writes_version_2(world: World, expected: dict[str, list[Any]]) -> None:
    client = Client(world)
    for number in range(4):
        client.append(b"last", topic="compacted", key=b"key %d" % number)
    world.owner.clean(["compacted"])
    assert {2} in versions(world, "compacted")
    assert world.values("compacted") == [b"last"] * 4
    assert read(world) | {"compacted-0": []} == expected | {"compacted-0": []}
    world.owner.close()


@pytest.mark.damages
@pytest.mark.parametrize("suffix", [".index", ".aborted", ".producers"])
def test_lost_side_files_are_rebuilt(
    world: World, expected: dict[str, list[Any]], suffix: str, tmp_path: Path
) -> None:
    world.owner.close()
    for path in tmp_path.rglob(f"*{suffix}"):
        path.unlink()
    world.open()
    assert read(world) == expected
    world.owner.close()


@pytest.mark.damages
@pytest.mark.parametrize("suffix", [".index", ".aborted"])
def test_a_side_file_of_version_1_of_another_segment_is_rejected(
    world: World, expected: dict[str, list[Any]], suffix: str, tmp_path: Path
) -> None:
    world.owner.close()
    first, second = sorted(
        path for path in tmp_path.rglob(f"*{suffix}") if "4/0" in str(path.relative_to(tmp_path))
    )
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    world.open()
    assert read(world) == expected
    for offset in range(
        world.owner.offsets([TopicPartition("plain", 0)]).popitem()[1].log_start, 140
    ):
        fetched = world.owner.fetch({TopicPartition("plain", 0): offset}).popitem()[1]
        assert fetched.batches[0].base_offset <= offset + 3, "no batch was passed over"
    world.owner.close()
