"""Appends that are cut off at every byte."""

from __future__ import annotations

from collections.abc import Iterator

from tests.crash.images import Image, Score, Tried, judge
from tests.crash.lives import Share, filmed, filmed_recovery, visited, visited_by_recovery
from tests.crash.recoveries import known


def torn(share: Share) -> Score:
    """Cut off each append at each byte × a death: by turns kill -9 and a cut that keeps it."""
    score, number = Score(), 0
    for image, durability in appends():
        assert image.written is not None
        tried = Tried()
        for size in range(1, image.written.size):
            number += 1
            if share.has(number):
                part = image.torn_at(size)
                death = part.torn_death(number, durability)
                judge(score, part, death, durability, tried)
    return score


def appends() -> Iterator[tuple[Image, str]]:
    """Yield each append of the workload, and one for each point met elsewhere only, with
    durability."""
    points = visited()
    met = set(points)
    every = {number for number, point in enumerate(points, start=1) if _is_append(point)}
    yield from _whole(filmed(every.__contains__), "fsync")
    new = _first_of_new(met, visited("os"))
    yield from _whole(filmed(new.__contains__, "os"), "os")
    for base in known():
        new = _first_of_new(met, visited_by_recovery(*base))
        yield from _whole(filmed_recovery(*base, new.__contains__), base.durability)


def _first_of_new(met: set[str], points: list[str]) -> set[int]:
    """Return the operations that are the first append at a point not in `met`. Extend `met`."""
    numbers = set()
    for number, point in enumerate(points, start=1):
        if _is_append(point) and point not in met:
            numbers.add(number)
        met.add(point)
    return numbers


def _is_append(point: str) -> bool:
    return point.endswith(".append")


def _whole(images: list[Image], durability: str) -> Iterator[tuple[Image, str]]:
    return ((i, durability) for i in images if i.written is not None and not i.torn)
