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

from changelog.clock import ManualClock
from changelog.embedded.checking.findings import Severity
from changelog.embedded.checking.folder import check_log
from tests.crash.oracle import PROMISES, Promise, Violation, check
from tests.crash.points import named
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
    broken: Counter[Promise] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        self.seconds += other.seconds
        self.points += other.points
        self.deaths += other.deaths
        self.broken += other.broken
        self.examples = (self.examples + other.examples)[:EXAMPLES]

    def note(self, case: str, violation: Violation) -> None:
        self.broken[violation.promise] += 1
        self.examples = [*self.examples, f"{case}\n    {violation}"][:EXAMPLES]

    def lines(self) -> Iterator[str]:
        """The score, for people."""
        yield f"{len(self.points):>8,} points, visited {self.points.total():,} times"
        for kind, number in sorted(self.deaths.items()):
            yield f"{number:>8,} {kind}"
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
    torn: bool = False

    def after(self, death: Outcome) -> PowerStorage:
        """The disk of the next life."""
        storage = self.storage.clone()
        storage.crash() if death is KILL else storage.cut(death)
        return storage

    def any_death(self) -> list[Outcome]:
        return [KILL, *self.storage.outcomes(SEEDS)]

    def deaths(self, number: int, durability: str) -> Iterator[Outcome]:
        """Those that image `number` of the workload is tried with; power cuts only with fsync.

        Of the cuts that take one thing only some are tried each time; over the workload all are.
        """
        outcomes = list(self.storage.outcomes(SEEDS)) if durability == "fsync" else []
        if self.torn:
            yield [KILL, *outcomes[1:2]][number % 2 * bool(outcomes[1:])]
            return
        yield KILL
        yield from outcomes[:2]
        single, seeded = outcomes[2 : -len(SEEDS)], outcomes[2:][-len(SEEDS) :]
        yield from seeded[number % len(SEEDS) :][:1]
        for at in range(min(SINGLE, len(single))):
            yield single[(SINGLE * number + at) % len(single)]


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
            self._take("before")

    def _after(self, operation: Operation) -> None:
        if operation.kind == "read":
            return
        self._known = self._past().marks()
        if self._wanted(self._count):
            if operation.kind == "append":
                for where in TORN:
                    self._take_torn(operation, where)
            self._take("after")

    def _take(self, moment: str, *, torn: bool = False) -> Image:
        case = f"{self._case}{moment} operation {self._count}, {self._point}"
        past = self._past().copy()
        self.images.append(Image(case, self._point, self._storage.clone(), past, torn))
        return self.images[-1]

    def _take_torn(self, operation: Operation, where: float) -> None:
        written = int(where * operation.size) if isinstance(where, float) else where
        written %= operation.size
        if 0 < written < operation.size:
            image = self._take(f"{written} bytes into", torn=True)
            image.storage.shorten(operation.path, operation.size - written)


# The next life ------------------------------------------------------------------------


def judge(score: Score, image: Image, death: Outcome, durability: str = "fsync") -> None:
    """One case: an image, a death, and the life after it."""
    score.points[image.point] += 1
    score.deaths["kills" if death is KILL else "power cuts"] += 1
    try:
        storage = image.after(death)
        if death is KILL:
            checked(storage, image.past.clock)
        live_on(storage, image.past, durability)
    except Violation as violation:
        score.note(f"{image.case}; {death.name}", violation)


def live_on(storage: PowerStorage, past: Past, durability: str) -> None:
    """Open what a death has left, judge it, use it, judge it again, close it, and check it."""
    scene = Scene(storage, past, durability=durability)
    with promised("opens"):
        scene.open()
    scene.actors.ledger.judge(scene.world)
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
