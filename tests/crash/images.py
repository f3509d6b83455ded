"""Images of a log at any moment of its life, and the judgement of the life after it.

An `Image` is a twin of the disk together with the clients' knowledge at that moment. A death turns
it into the disk of the next life: `kill -9` leaves all that was written, a power cut leaves one of
its outcomes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from tests.crash.oracle import PROMISES, Promise, Violation, check
from tests.crash.points import POINTS, named
from tests.crash.twin import Operation, Outcome, PowerStorage
from tests.crash.workload import Past, Scene

KILL = Outcome("kill -9")
SEEDS = range(5)
SINGLE = 2
"""Number of power cuts that lose a single thing, tried per image."""
TORN = (1, 60, 0.5, -1)
"""Sizes of a torn write: bytes from its beginning, a fraction, bytes from its end."""
BY_HAND = "group offset"
"""Finding of `check` about offsets beyond the end. It is expected, because the actors invent
offsets."""
EXAMPLES = 20


@dataclass
class Score:
    """Counts of the visited points and deaths, and of the broken promises."""

    seconds: float = 0.0
    points: Counter[str] = field(default_factory=Counter)
    """Number of stops or failures, by name of the point."""
    deaths: Counter[str] = field(default_factory=Counter)
    """Number of deaths, by kind."""
    spared: int = 0
    """Number of lives that were not run to the end: see `Tried`."""
    broken: Counter[Promise] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        self.seconds += other.seconds
        self.points += other.points
        self.deaths += other.deaths
        self.spared += other.spared
        self.broken += other.broken
        self.examples = (self.examples + other.examples)[:EXAMPLES]

    def visit(self, point: str) -> None:
        """Count a stop or failure. An empty name means that the failure never struck."""
        if point:
            self.points[point] += 1

    def note(self, case: str, violation: Violation) -> None:
        self.broken[violation.promise] += 1
        self.examples = [*self.examples, f"{case}\n    {violation}"][:EXAMPLES]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the printed score."""
        known = len(POINTS & self.points.keys())
        yield f"{known:>8,} of {len(POINTS)} points, struck {self.points.total():,} times"
        for kind, number in sorted(self.deaths.items()):
            yield f"{number:>8,} {kind}"
        yield f"{self.spared:>8,} lives that began like one of before, and ended at that"
        yield "  broken"
        for promise, meaning in PROMISES.items():
            yield f"{self.broken[promise]:>8,} {promise}: {meaning}"
        yield from self.examples


class Image(NamedTuple):
    """State of the disk and of the clients' knowledge at one moment of a life."""

    case: str
    point: str
    storage: PowerStorage
    past: Past
    written: Operation | None = None
    """Last operation, if it was an append."""
    torn: bool = False
    """True if only a part of that append is on the disk."""

    def torn_at(self, size: int) -> Image:
        """Return the same moment with only the first `size` bytes of the append written."""
        assert self.written is not None
        storage = self.storage.clone()
        storage.shorten(self.written.path, self.written.size - size)
        case = f"{self.case}, {size} of its {self.written.size} bytes"
        return self._replace(case=case, storage=storage, torn=True)

    def after(self, death: Outcome) -> PowerStorage:
        """Return the disk of the next life."""
        storage = self.storage.clone()
        storage.crash() if death is KILL else storage.cut(death)
        return storage

    def any_death(self, durability: str = "fsync") -> list[Outcome]:
        """Return kill -9 and, with fsync, the power cuts. Without fsync a cut voids all
        promises."""
        return [KILL, *(self.storage.outcomes(SEEDS) if durability == "fsync" else ())]

    def deaths(self, number: int, durability: str) -> Iterator[Outcome]:
        """Yield the deaths to try on image `number` of the workload; power cuts only with fsync.

        Each image gets some of the cuts that lose a single thing. Over the workload all are tried.
        """
        if self.torn:
            yield self.torn_death(number, durability)
            return
        kill, *outcomes = self.any_death(durability)
        yield kill
        yield from outcomes[:2]
        single, seeded = outcomes[2 : -len(SEEDS)], outcomes[2:][-len(SEEDS) :]
        yield from seeded[number % len(SEEDS) :][:1]
        for at in range(min(SINGLE, len(single))):
            yield single[(SINGLE * number + at) % len(single)]

    def torn_death(self, number: int, durability: str) -> Outcome:
        """Return by turns kill -9 and a power cut that keeps at least some of the torn write."""
        assert self.written is not None
        if durability == "os" or number % 2 == 0:
            return KILL
        cuts = list(self.storage.outcomes(SEEDS, keeping=self.written.path))
        return cuts[number // 2 % len(cuts)]


class Camera:
    """Takes an image before and after each wanted operation, and of each torn write."""

    def __init__(
        self,
        case: str,
        storage: PowerStorage,
        past: Callable[[], Past],
        wanted: Callable[[int], bool],
    ) -> None:
        self.images: list[Image] = []
        self._count = 0
        self._case = case
        self._storage = storage
        self._past = past
        self._wanted = wanted
        self._known: list[object] = []
        self._point = ""
        storage.hook, storage.after = self._before, self._after

    def _before(self, operation: Operation) -> None:
        if operation.kind == "read":
            return
        self._count += 1
        self._point = named(self._storage, operation)
        # If the clients learned nothing since, this equals the image after the last operation.
        if self._wanted(self._count) and self._past().marks() != self._known:
            self.images.append(self._image("before"))

    def _after(self, operation: Operation) -> None:
        if operation.kind == "read":
            return
        self._known = self._past().marks()
        if self._wanted(self._count):
            is_append = operation.kind == "append"
            image = self._image("after", operation if is_append else None)
            if is_append:
                self.images += [image.torn_at(size) for size in _cuts(operation.size)]
            self.images.append(image)

    def _image(self, moment: str, written: Operation | None = None) -> Image:
        case = f"{self._case}{moment} operation {self._count}, {self._point}"
        return Image(case, self._point, self._storage.clone(), self._past().copy(), written)


def _cuts(size: int) -> Iterator[int]:
    """Yield the sizes at which a write of `size` bytes is torn."""
    for where in TORN:
        written = (int(where * size) if isinstance(where, float) else where) % size
        if 0 < written < size:
            yield written


# The next life ------------------------------------------------------------------------


EVERY_SPARED = 50
"""Every 50th of the lives that could be spared is run all the same."""


class Tried:
    """Openings seen so far, so that a life that begins like another need not be run again.

    Only deaths between two moments at which clients learned something are compared, or deaths
    within one recovery. Clients then know the same. If the files after the opening are the same
    too, and readers were shown the same, the rest of the life is the same. Temporary files left by
    a crash are compared by name only: they are removed before they are used, and never read.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._spared = 0

    def spares(self, scene: Scene, storage: PowerStorage) -> bool:
        known = (scene.clock.now_ms(), scene.past().marks())
        beginning = hash((_readable(storage), repr(known)))
        if beginning not in self._known:
            self._known.add(beginning)
            return False
        self._spared += 1
        return self._spared % EVERY_SPARED > 0


def _readable(storage: PowerStorage) -> tuple[tuple[str, bytes], ...]:
    """Return the content of all files, but only the names of temporary ones."""
    return tuple(
        (path, b"" if path.endswith(".tmp") else storage.content(path)) for path in storage.paths()
    )


def judge(
    score: Score,
    image: Image,
    death: Outcome,
    durability: str = "fsync",
    tried: Tried | None = None,
) -> None:
    """Run one case: an image, a death, and the life after it unless it was tried before."""
    score.visit(image.point)
    score.deaths["kills" if death is KILL else "power cuts"] += 1
    try:
        storage = image.after(death)
        if death is KILL:
            checked(storage, image.past.clock)
        scene = opened(storage, image.past, durability)
        if tried is not None and tried.spares(scene, storage):
            score.spared += 1
        else:
            live_on(scene, storage)
    except Violation as violation:
        score.note(f"{image.case}; {death.name}", violation)


def opened(storage: PowerStorage, past: Past, durability: str) -> Scene:
    """Open the log that a death has left, and judge it."""
    scene = past.next_life(storage, durability=durability)
    with promised("opens"):
        scene.open()
    scene.actors.ledger.judge(scene.world)
    return scene


def live_on(scene: Scene, storage: PowerStorage) -> None:
    """Use an opened log, judge it again, close it and check it."""
    with promised("goes on"):
        runner = scene.start_task()
    runner.judge(finished=False)
    with promised("goes on"):
        scene.go_on()
    scene.actors.ledger.judge(scene.world)
    runner.judge(finished=True)
    with promised("goes on"):
        scene.close()
    checked(storage, scene.clock)


def checked(storage: PowerStorage, clock: ManualClock) -> None:
    """Check a log. Notes are allowed, because a crash leaves some and opening removes them."""
    with promised("check"):
        report = check_log(storage, clock=copy.copy(clock)).report
    wrong = [
        f"{found.file}: {found.what}"
        for found in report.findings
        if found.severity > Severity.NOTE and found.kind != BY_HAND
    ]
    check("check", not wrong, "; ".join(wrong))


@contextmanager
def promised(promise: Promise) -> Iterator[None]:
    """Turn any error inside into a violation of this promise, unless it is a Violation already."""
    try:
        yield
    except Violation:
        raise
    except Exception as error:
        raise Violation(promise, f"{type(error).__name__}: {error}") from error
