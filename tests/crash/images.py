"""What a log leaves at any moment of its life, and how the next life judges it.

An `Image` is a twin of the disk and what everybody knew at that moment. A death turns it into the
disk of the next life: `kill -9` leaves what was written, a power cut one of its outcomes.
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
"""So many of the cuts that take one thing only are tried on one image."""
TORN = (1, 60, 0.5, -1)
"""Where a write is cut: bytes from its beginning, a part of it, bytes from its end."""
BY_HAND = "group offset"
"""What check says of offsets beyond the end; those of the actors are mere numbers."""
EXAMPLES = 20


@dataclass
class Score:
    """What was visited, and what went wrong."""

    seconds: float = 0.0
    points: Counter[str] = field(default_factory=Counter)
    """By name, how often a stop or failure was there."""
    deaths: Counter[str] = field(default_factory=Counter)
    """By kind."""
    spared: int = 0
    """Lives that were not lived to the end: see `Tried`."""
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
        """There was a stop or failure; empty: what should have failed had nothing to do."""
        if point:
            self.points[point] += 1

    def note(self, case: str, violation: Violation) -> None:
        self.broken[violation.promise] += 1
        self.examples = [*self.examples, f"{case}\n    {violation}"][:EXAMPLES]

    def lines(self) -> Iterator[str]:
        """The score, for people."""
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
    """What is on the disk, and known, at one moment of a life."""

    case: str
    point: str
    storage: PowerStorage
    past: Past
    written: Operation | None = None
    """The append that was the last thing done."""
    torn: bool = False
    """Of which there is only a part."""

    def torn_at(self, size: int) -> Image:
        """The same moment, but of the append so many bytes have been written, and no more."""
        assert self.written is not None
        storage = self.storage.clone()
        storage.shorten(self.written.path, self.written.size - size)
        case = f"{self.case}, {size} of its {self.written.size} bytes"
        return self._replace(case=case, storage=storage, torn=True)

    def after(self, death: Outcome) -> PowerStorage:
        """The disk of the next life."""
        storage = self.storage.clone()
        storage.crash() if death is KILL else storage.cut(death)
        return storage

    def any_death(self, durability: str = "fsync") -> list[Outcome]:
        """kill -9, and with fsync the power cuts; without it nothing is promised after those."""
        return [KILL, *(self.storage.outcomes(SEEDS) if durability == "fsync" else ())]

    def deaths(self, number: int, durability: str) -> Iterator[Outcome]:
        """Those that image `number` of the workload is tried with; power cuts only with fsync.

        Of the cuts that take one thing only some are tried each time; over the workload all are.
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
        """By turns kill -9, and the power cuts that do not take all of the torn write."""
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
        # As long as nothing has become known, it is the image after the last operation.
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
    """Where a write of so many bytes is torn."""
    for where in TORN:
        written = (int(where * size) if isinstance(where, float) else where) % size
        if 0 < written < size:
            yield written


# The next life ------------------------------------------------------------------------


EVERY_SPARED = 50
"""Of the lives that could be spared every 50th is lived all the same."""


class Tried:
    """What openings have left, so that a life need not be lived again that begins like another.

    The deaths compared are of moments between which nobody learned anything, or within one recovery,
    so everybody knows the same. If the files are the same too when the log is open, and readers were
    shown the same, so is what comes after. Of a temporary file that a crash has left it only counts that it is there: it is
    removed before its place is taken, and read by nobody.
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
    """All files, with what is in them; the temporary ones without."""
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
    """One case: an image, a death, and the life after it, unless that has been tried."""
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
    """Open what a death has left, and judge it."""
    scene = Scene(storage, past, durability=durability)
    with promised("opens"):
        scene.open()
    scene.actors.ledger.judge(scene.world)
    return scene


def live_on(scene: Scene, storage: PowerStorage) -> None:
    """Use an opened log, judge it again, close it, and check it."""
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
    """Notes are allowed: a crash leaves such, and an opening puts it right."""
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
    """Whatever goes wrong inside breaks this promise, unless it says itself what it breaks."""
    try:
        yield
    except Violation:
        raise
    except Exception as error:
        raise Violation(promise, f"{type(error).__name__}: {error}") from error
