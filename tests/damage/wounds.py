"""Damage to a file: missing, cut, zeroed, overwritten, one bit changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import NamedTuple

from strandline.changelog.embedded.format import HEADER_SIZE
from tests.damage.material import Files

_HEADER_FIELDS = (0, 4, 8, 12, 16, 17, 18, 20, 24, 32, 40, 48, 56, 64, 72, 76, 80, 84, 88, 96, 100)
"""Position of each field of a frame's header (docs/format.md)."""

WHOLE = ("delete", "empty", "zero", "noise")
PAIRED = ("delete", "zero tail", "flip")


class Wound(NamedTuple):
    """One damage to one file."""

    path: str
    kind: str
    at: int = 0
    """First byte of the damage, or the damaged byte."""
    other: str = ""
    """File whose content this one gets instead."""

    def __str__(self) -> str:
        if self.other:
            return f"{self.other} in the place of {self.path}"
        return f"{self.kind} {self.path} at {self.at}"

    def of(self, content: bytes) -> bytes | None:
        """Return the damaged content; None if the file is missing."""
        before, after = content[: self.at], content[self.at :]
        match self.kind:
            case "delete":
                return None
            case "empty":
                return b""
            case "cut":
                return before
            case "grow":
                return content + b"\0"
            case "zero" | "zero tail":
                return before + bytes(len(after))
            case "noise" | "noise tail":
                return before + Random(self.at).randbytes(len(after))
            case "flip" | "high flip" if not after:
                return content
            case "flip":
                return before + bytes([after[0] ^ 1]) + after[1:]
            case "high flip":
                return before + bytes([after[0] ^ 0x80]) + after[1:]
        raise ValueError(self.kind)


def hurt(files: Files, wounds: tuple[Wound, ...]) -> dict[str, bytes]:
    """Return the files with all these wounds."""
    left = dict(files)
    for wound in wounds:
        content = files[wound.other] if wound.other else wound.of(left[wound.path])
        if content is None:
            del left[wound.path]
        else:
            left[wound.path] = content
    return left


def single(files: Files) -> Iterator[tuple[Wound, ...]]:
    """Yield every wound of every file, at every significant byte."""
    for path, content in sorted(files.items()):
        for kind in WHOLE:
            yield (Wound(path, kind),)
        yield (Wound(path, "grow", len(content)),)
        for at in sorted({1, len(content) // 2, len(content) - 1}):
            for kind in ("cut", "zero tail", "noise tail"):
                yield (Wound(path, kind, at),)
        for at in places(path, content):
            for kind in ("flip", "high flip"):
                yield (Wound(path, kind, at),)


def pairs(files: Files) -> Iterator[tuple[Wound, ...]]:
    """Yield a few combinations of wounds for every two files."""
    for one, other in combinations(sorted(files), 2):
        for first in PAIRED:
            for second in PAIRED:
                yield _in_the_middle(files, one, first), _in_the_middle(files, other, second)


def swaps(files: Files) -> Iterator[tuple[Wound, ...]]:
    """Yield swaps of every two files of one kind, across partitions and topics."""
    for one, other in combinations(sorted(files), 2):
        if _kind(one) == _kind(other) and files[one] != files[other]:
            yield Wound(one, "swap", other=other), Wound(other, "swap", other=one)


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.partition(".")[2]


def tails(files: Files, path: str, last: int) -> Iterator[tuple[Wound, ...]]:
    """Yield a file's end cut, zeroed and overwritten from each of its last bytes."""
    size = len(files[path])
    for at in range(max(0, size - last), size):
        for kind in ("cut", "zero tail", "noise tail"):
            yield (Wound(path, kind, at),)


def places(path: str, content: bytes) -> list[int]:
    """Return one byte of each significant part of a file."""
    if path.endswith(".log"):
        return sorted(_places_of_frames(content))
    words = [at + 1 for at, byte in enumerate(content[:60]) if byte in b" \n"]
    body = words[3] if len(words) > 3 else 0
    inside = [body + (len(content) - body) * part // 8 for part in range(8)]
    return sorted({0, *words[:4], *inside, len(content) - 1} & set(range(len(content))))


def _places_of_frames(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at + 12 : at + 16], "little")
        start, size = (int.from_bytes(content[at + f : at + f + 4], "little") for f in (96, 100))
        yield from (at + field for field in _HEADER_FIELDS)
        yield from {at + HEADER_SIZE, at + start, at + start + size // 2, at + length - 1}
        at += length


def _in_the_middle(files: Files, path: str, kind: str) -> Wound:
    return Wound(path, kind, 0 if kind == "delete" else len(files[path]) // 2)
