"""Small files that are replaced whole: one line saying what they are, then their body.

    strandline <kind> <version> <CRC-32C of the body, 8 hex digits>
    …body…

The kinds are in changelog/embedded/names.py's table; most bodies are JSON, so that a person can read
them. Written by temporary file, fsync, rename, fsync of the folder.

Files beside a segment have version 2: their checksum begins with that of the file's own place,
"<topic id>/<partition>/<name>". Such a file is not valid in the place of another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any, TypeVar, cast

import crc32c
import msgspec

from strandline.changelog.decoding import known_json_decoder
from strandline.changelog.errors import REPAIR, UNREADABLE, CorruptLog, FutureFormat
from strandline.changelog.storage import Storage, replace

VERSION = 1
"""Format version of every kind of document that VERSIONS does not name."""
VERSIONS = {"manifest": 2, "index": 2, "aborted": 2, "producers": 2}
"""Format versions above 1. Earlier ones are read as well."""
PLACED = frozenset({"index", "aborted", "producers"})
"""Kinds of documents whose checksum covers their place, from version 2 on."""
MAX_SIZE = 1 << 30
"""Bytes; a longer file is damage, not a document."""
_MAX_LINE_BYTES = 200

T = TypeVar("T")


def pack(kind: str, body: bytes, path: str = "") -> bytes:
    """The content of a document that is to be at `path`.

    >>> pack("manifest", b"{}")
    b'strandline manifest 2 297bd0aa\\n{}'
    >>> pack("aborted", b"[]", "topics/0a/3/x.aborted") == pack("aborted", b"[]", "0a/4/x.aborted")
    False
    """
    version = _version(kind)
    return (
        f"strandline {kind} {version} {_checksum(kind, version, body, path):08x}\n".encode() + body
    )


def _checksum(kind: str, version: int, body: bytes, path: str) -> int:
    place = "/".join(path.split("/")[-3:]) if kind in PLACED and version > 1 else ""
    return crc32c.crc32c(body, crc32c.crc32c(place.encode()))


def unpack(kind: str, content: bytes, where: str) -> bytes:
    """The body of a document. Raises CorruptLog or FutureFormat, naming the file `where`."""
    line, newline, body = content.partition(b"\n")
    words = line[:_MAX_LINE_BYTES].decode("ascii", "replace").split(" ")
    if not newline or len(words) != 4 or words[:2] != ["strandline", kind]:
        raise CorruptLog(
            f"{where}: not a {kind} file, it begins with {bytes(line[:40])!r}; {REPAIR}"
        )
    latest = _version(kind)
    if not words[2].isdigit() or int(words[2]) > latest:
        raise FutureFormat(
            f"{where}: {kind} version {words[2]}, this Strandline reads up to {latest}; upgrade"
        )
    if words[3] != f"{_checksum(kind, int(words[2]), body, where):08x}":
        raise CorruptLog(f"{where}: the {kind}'s checksum does not match; {REPAIR}")
    return body


def encoded(kind: str, value: Any, path: str = "") -> bytes:
    """The content of a document that is to be at `path`, with `value` as JSON."""
    return pack(kind, msgspec.json.format(msgspec.json.encode(value)), path)


def save(storage: Storage, path: str, kind: str, value: Any) -> None:
    """Replace the document at `path` by `value` as JSON, durably."""
    replace(storage, path, encoded(kind, value, path))


def read(storage: Storage, path: str, kind: str) -> bytes:
    """The body of the document at `path`. Raises FileNotFoundError, CorruptLog, FutureFormat."""
    with contextlib.closing(storage.open(path)) as file:
        if file.size() > MAX_SIZE:
            raise CorruptLog(
                f"{path}: {file.size():,} bytes where a {kind} has at most {MAX_SIZE:,}; {REPAIR}"
            )
        return unpack(kind, bytes(file.read(0, file.size())), path)


def load(storage: Storage, path: str, kind: str, type_: type[T]) -> T:
    """Read the document at `path`. Raises FileNotFoundError, CorruptLog, FutureFormat."""
    body = read(storage, path, kind)
    try:
        return cast("T", known_json_decoder(cast("Hashable", type_)).decode(body))
    except UNREADABLE as error:
        raise CorruptLog(f"{path}: the {kind} cannot be decoded: {error}; {REPAIR}") from error


def _version(kind: str) -> int:
    return VERSIONS.get(kind, VERSION)
