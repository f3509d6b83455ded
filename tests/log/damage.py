"""Damage to a log in memory, one place at a time, and the findings of `check` on it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.findings import CheckReport, Finding, Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.frame import encode, frame_parts
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.layout import partition_folder, place_of
from strandline.changelog.memory_storage import MemoryStorage
from tests.log.kit import World, columns

SMALL = {"segment.bytes": "4096", "index.interval.bytes": "512"}


def files(world: World) -> dict[str, bytearray]:
    """Return the content of every file of the world, by path."""
    assert isinstance(world.storage, MemoryStorage)
    return world.storage._files


def folder_of(world: World, topic: str = "t", partition: int = 0) -> str:
    """Return the folder of a partition, also if its owner is closed."""
    return partition_folder(world.owner._log.catalog.get(topic).meta.topic_id, partition)


def paths(world: World, suffix: str, topic: str = "t", partition: int = 0) -> list[str]:
    """Return the files of a partition whose names end in `suffix`, sorted."""
    inside = folder_of(world, topic, partition) + "/"
    return sorted(p for p in files(world) if p.startswith(inside) and p.endswith(suffix))


def log_file(world: World, number: int = -1, topic: str = "t", partition: int = 0) -> bytearray:
    """Return the content of a partition's segment file, by default of the last one."""
    return files(world)[paths(world, ".log", topic, partition)[number]]


def positions(content: bytes | bytearray) -> list[int]:
    """Return the position of each frame in a segment."""
    found, at = [], 0
    while at < len(content):
        found.append(at)
        at += int.from_bytes(content[at + 12 : at + 16], "little")
    return found


def rewrite(world: World, path: str, kind: str, change: Any) -> None:
    """Change the body of a document and update its checksum."""
    body = document.unpack(kind, bytes(files(world)[path]), path)
    files(world)[path][:] = document.pack(kind, change(body), path)


def change_manifest(world: World, change: Any, topic: str = "t", partition: int = 0) -> None:
    """Change the manifest of a partition and save it."""
    folder = folder_of(world, topic, partition)
    manifest = Manifest.load(world.storage, folder)
    change(manifest)
    manifest.save(world.storage, folder)


def place(world: World, topic: str = "t", partition: int = 0) -> int:
    """Return the CRC of a partition's folder name, which is part of its frames' checksums."""
    return place_of(f"{folder_of(world, topic, partition)}/")


def append_frame(
    world: World,
    *values: bytes | None,
    topic: str = "t",
    batch: pa.RecordBatch | None = None,
    **header: Any,
) -> None:
    """Write a frame after the last one of a partition, without any of the owner's checks."""
    encoded = encode(batch or columns(values), schema_id=header.pop("schema_id", 0))
    parts = frame_parts(encoded, **header, place=place(world, topic))[1]
    log_file(world, topic=topic).extend(b"".join(bytes(part) for part in parts))


def report(world: World) -> CheckReport:
    """Check the world's folder, also while its owner has it open."""
    return check_log(world.storage, clock=world.clock).report


def found(world: World) -> list[tuple[str, str]]:
    """Return severity and kind of the findings, each pair once."""
    pairs = [(one.severity.name.lower(), one.kind) for one in report(world).findings]
    return sorted(set(pairs))


def only(world: World, severity: Severity) -> Finding:
    """Return the only finding of a severity."""
    (finding,) = report(world).of(severity)
    return finding
