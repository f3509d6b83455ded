"""Small files that are replaced as a whole: a header line, then a body.

    strandline <kind> <version> <CRC-32C of the body, 8 hex digits>
    …body…

The table in changelog/layout.py lists the kinds. Most bodies are JSON, so that a person can
read them. A document is written by temporary file, fsync, rename, fsync of the folder.

Files beside a segment have version 2. Their checksum also covers the path "<topic
id>/<partition>/<name>", so such a file is not valid in another place.
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
"""Format version of every kind of document that VERSIONS does not list."""
VERSIONS = {"manifest": 2, "index": 2, "aborted": 2, "producers": 2}
"""Format versions above 1. Files of earlier versions can be read."""
PLACED = frozenset({"index", "aborted", "producers"})
"""Kinds of documents whose checksum covers their path, from version 2 on."""
MAX_SIZE = 1 << 30
"""Maximum size of a document in bytes. A longer file is damaged."""
_MAX_LINE_BYTES = 200

T = TypeVar("T")


def pack(kind: str, body: bytes, path: str = "") -> bytes:
    """Return the content of a document that is to be written to `path`.

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
    """Return the body of a document, its checksum verified.

    `where` is the file's path. Raises CorruptLog, FutureFormat.
    """
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
    """Return the content of a document that is to be written to `path`, with `value` as JSON."""
    return pack(kind, msgspec.json.format(msgspec.json.encode(value)), path)


def save(storage: Storage, path: str, kind: str, value: Any) -> None:
    """Replace the document at `path` by `value` as JSON, durably."""
    replace(storage, path, encoded(kind, value, path))


def read(storage: Storage, path: str, kind: str) -> bytes:
    """Return the body of the document at `path`.

    Raises FileNotFoundError, CorruptLog, FutureFormat.
    """
    with contextlib.closing(storage.open(path)) as file:
        if file.size() > MAX_SIZE:
            raise CorruptLog(
                f"{path}: {file.size():,} bytes where a {kind} has at most {MAX_SIZE:,}; {REPAIR}"
            )
        return unpack(kind, bytes(file.read(0, file.size())), path)


def load(storage: Storage, path: str, kind: str, type_: type[T]) -> T:
    """Read and decode the document at `path`.

    Raises FileNotFoundError, CorruptLog, FutureFormat.
    """
    body = read(storage, path, kind)
    try:
        return cast("T", known_json_decoder(cast("Hashable", type_)).decode(body))
    except UNREADABLE as error:
        raise CorruptLog(f"{path}: the {kind} cannot be decoded: {error}; {REPAIR}") from error


def _version(kind: str) -> int:
    return VERSIONS.get(kind, VERSION)
