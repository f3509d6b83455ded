"""Every step is a crash point: stop the workload at each, look at what is left, and go on.

    stops       before, after, and in the middle of each operation × deaths
    failures    an EIO or ENOSPC at each operation, once or from then on × deaths
    recoveries  stops at each operation of the recovery from a death, twice in a row
    pairs       two failures, in one life and in the recovery or life after it, as a seed says

After the last death the log is opened, held against what was promised (tests/crash/oracle.py), used
by everybody as if nothing had happened, judged again, closed and checked.

    python -m tests.crash.battery [--stride N] [--first N] [--processes N]

runs all of it and prints the score; with a stride, every N-th case from the first on.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import get_context
from random import Random
from typing import NamedTuple
from unittest import mock

from changelog.embedded.environment import Environment
from changelog.errors import DiskFull, StorageFailed
from framework.container import outage
from tests.crash.images import Camera, Image, Score, judge, promised
from tests.crash.oracle import Violation
from tests.crash.points import named
from tests.crash.twin import Died, Operation, Outcome, PowerStorage
from tests.crash.workload import Past, Scene
from tests.log.power import taking_turns


class Share(NamedTuple):
    """Every `stride`-th case, beginning with the `first`."""

    first: int = 0
    stride: int = 1

    def has(self, number: int) -> bool:
        return number % self.stride == self.first


# Stops --------------------------------------------------------------------------------


def filmed(
    wanted: Callable[[int], bool],
    durability: str = "fsync",
    storage: PowerStorage | None = None,
) -> list[Image]:
    """Images of the workload, at the operations that are wanted."""
    storage = storage or PowerStorage()
    scene = Scene(storage, durability=durability)
    camera = Camera(f"{durability}: ", storage, scene.past, wanted)
    scene.open()
    scene.play()
    return camera.images


def stops(share: Share, durability: str = "fsync") -> Score:
    """At each operation × deaths."""
    score = Score()
    for number, image in enumerate(filmed(share.has, durability)):
        for death in image.deaths(share.first + number, durability):
            judge(score, image, death, durability)
    return score


def stops_without_fsync(share: Share) -> Score:
    """The same with durability "os"."""
    return stops(share, "os")


# Failures of the disk -----------------------------------------------------------------


class Failure(NamedTuple):
    """How the disk fails."""

    name: str
    error: type[StorageFailed]
    lasting: bool = False
    late: bool = False
    """It has done what it says it could not."""


FAILURES = (
    Failure("EIO once", StorageFailed),
    Failure("EIO from then on", StorageFailed, lasting=True),
    Failure("EIO once, though it was done", StorageFailed, late=True),
    Failure("ENOSPC once", DiskFull),
    Failure("ENOSPC from then on", DiskFull, lasting=True),
)
NEED_SPACE = ("append", "create", "make_dir", "fsync")


class FailingDisk:
    """Makes a storage fail at its `at`-th operation; without a failure the process dies there."""

    def __init__(self, storage: PowerStorage, at: int, failure: Failure | None) -> None:
        self.count = 0
        """Operations so far."""
        self.point = ""
        """Where it struck; empty before."""
        self._at = at
        self._storage = storage
        self._failure = failure
        storage.short = lambda size: size * (at % 3) // 2  # nothing, half, all
        if failure is not None and failure.late:
            storage.after = self._strike
        else:
            storage.hook = self._strike

    def has_struck(self) -> bool:
        return bool(self.point)

    def _strike(self, operation: Operation) -> None:
        self.count += operation.kind != "read"
        if operation.kind == "read" or not self._is_due(operation):
            return
        self.point = self.point or named(self._storage, operation)
        if self._failure is None:
            raise Died(f"at {operation}")
        raise self._failure.error(f"cannot {operation.kind} {operation.path}: so says the test")

    def _is_due(self, operation: Operation) -> bool:
        failure = self._failure
        if failure is None or not failure.lasting:
            due = self.count == self._at
        else:
            due = self.count >= self._at
        harmless = failure is not None and failure.error is DiskFull
        return due and not (harmless and operation.kind not in NEED_SPACE)


def failures(share: Share) -> Score:
    """Of every kind, at each operation × a death."""
    score = Score()
    for number in count(1):
        if not share.has(number):
            continue
        for at, failure in enumerate(FAILURES):
            image = failing_life(score, number, failure)
            if image is None:
                return score
            if image.point:
                every = image.any_death()
                judge(score, image, every[(number + at) % len(every)])
    return score


def failing_life(score: Score, number: int, failure: Failure) -> Image | None:
    """What a life leaves whose disk fails at an operation; None if it has fewer."""
    storage = PowerStorage()
    disk = FailingDisk(storage, number, failure)
    scene = Scene(storage, may_fail=disk.has_struck)
    case = f"{failure.name} at operation {number}"
    try:
        with promised("goes on"), scene.actors.tolerant():
            scene.open()
            scene.play()
    except Violation as violation:
        score.note(f"{case}, {disk.point}", violation)
    if disk.count < number:
        return None
    return Image(f"{case}, {disk.point}", disk.point, storage.clone(), scene.past())


# Recoveries ---------------------------------------------------------------------------


ROTATION = 6
"""Of the images of one recovery every sixth is tried, of the next ones the others."""


def recoveries(share: Share) -> Score:
    """Stops at each operation of recoveries, each followed by another one somewhere."""
    score, chance = Score(), Random(share.first)
    for at, base in each_point_once(share):
        death = base.any_death()[: at % 3 + 1][-1]  # kill -9, nothing is kept, everything is
        for image in filmed_recovery(base, death)[at % ROTATION :: ROTATION]:
            second = chance.choice(image.any_death())
            judge(score, image, second)
            again = interrupted(image, second, chance.randrange(1, 60))
            if again is not None:
                judge(score, again, chance.choice(again.any_death()))
    return score


def each_point_once(share: Share) -> Iterator[tuple[int, Image]]:
    """An image of the workload behind each point; of those met several times, in the middle."""
    met: dict[str, list[int]] = {}
    for number, point in enumerate(visited(), start=1):
        met.setdefault(point, []).append(number)
    for at, numbers in enumerate(met.values()):
        if share.has(at):
            number = numbers[len(numbers) // 2]
            yield at, filmed(number.__eq__)[-1]


def visited(durability: str = "fsync") -> list[str]:
    """The points that the workload goes through, in order."""
    storage = PowerStorage()
    points = noted(storage)
    scene = Scene(storage, durability=durability)
    scene.open()
    scene.play()
    return points


def noted(storage: PowerStorage) -> list[str]:
    """The points that a storage is about to go through."""
    points: list[str] = []

    def note(operation: Operation) -> None:
        if operation.kind != "read":
            points.append(named(storage, operation))

    storage.hook = note
    return points


def filmed_recovery(base: Image, death: Outcome) -> list[Image]:
    """Images of the opening after a death, and of the restoring of stores."""
    storage = base.after(death)
    scene = Scene(storage, base.past)

    def past() -> Past:
        return base.past._replace(clock=scene.clock)

    camera = Camera(f"{base.case}; {death.name}; recovery: ", storage, past, always)
    scene.open()
    scene.start_task()
    return camera.images


def always(_: int) -> bool:
    return True


def interrupted(base: Image, death: Outcome, at: int) -> Image | None:
    """What a recovery leaves that is stopped at an operation; None if it has fewer."""
    storage = base.after(death)
    scene = Scene(storage, base.past)
    disk = FailingDisk(storage, at, None)
    with suppress(Died):
        scene.open()
        scene.start_task()
        return None
    case = f"{base.case}; {death.name}; again at operation {at}, {disk.point}"
    return Image(case, disk.point, storage.clone(), base.past._replace(clock=scene.clock))


# Pairs --------------------------------------------------------------------------------

PAIRS = 1_500
OPERATIONS = 900
"""About as many as the workload has."""
OPERATIONS_OF_THE_NEXT = 250


def pairs(share: Share) -> Score:
    """As many as PAIRS, each by its seed."""
    score = Score()
    for seed in range(PAIRS):
        if share.has(seed):
            pair(score, seed)
    return score


def pair(score: Score, seed: int) -> None:
    """A failure in a life, one in the next, and a death after each."""
    chance, case = Random(seed), f"pair {seed}: "
    try:
        storage = PowerStorage()
        first = unlucky(case, chance, Scene(storage), storage, Scene.play, OPERATIONS)
        death = chance.choice(first.any_death())
        storage = first.after(death)
        scene = Scene(storage, first.past)
        case = f"{first.case}; {death.name}; "
        second = unlucky(case, chance, scene, storage, Scene.go_on, OPERATIONS_OF_THE_NEXT)
    except Violation as violation:
        score.note(case, violation)
        return
    score.points[first.point] += 1
    judge(score, second, chance.choice(second.any_death()))


def unlucky(
    case: str,
    chance: Random,
    scene: Scene,
    storage: PowerStorage,
    life: Callable[[Scene], None],
    operations: int,
) -> Image:
    """A life in which one thing goes wrong."""
    failure = chance.choice([None, *FAILURES])
    disk = FailingDisk(storage, chance.randrange(1, operations), failure)
    scene.may_fail = scene.actors.may_fail = disk.has_struck
    with suppress(Died), promised("goes on"), scene.actors.tolerant():
        scene.open()
        scene.actors.ledger.judge(scene.world)
        life(scene)
    name = "stop" if failure is None else failure.name
    return Image(f"{case}{name} at {disk.point}", disk.point, storage.clone(), scene.past())


# All of it ----------------------------------------------------------------------------

PARTS: dict[str, Callable[[Share], Score]] = {
    "stops": stops,
    "stops, os": stops_without_fsync,
    "failures": failures,
    "recoveries": recoveries,
    "pairs": pairs,
}
CHUNKS = 6
"""Shares of a part for each process."""


@contextmanager
def alone() -> Iterator[None]:
    """No threads, no waiting, no log messages: the same story each time."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.object(Environment, "at_once", taking_turns),
            mock.patch.object(outage, "PATIENCE_SECONDS", 0.0),
        ):
            yield
    finally:
        logging.disable(before)


def run(part: str, share: Share) -> Score:
    """A share of one part."""
    begun = time.perf_counter()
    with alone():
        score = PARTS[part](share)
    score.seconds = time.perf_counter() - begun
    return score


def run_all(whole: Share, processes: int) -> dict[str, Score]:
    """Every part, in several processes; what they find wrong is printed at once."""
    chunks = processes * CHUNKS
    shares = [
        Share(whole.first + whole.stride * chunk, whole.stride * chunks) for chunk in range(chunks)
    ]
    scores = {part: Score() for part in PARTS}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = {pool.submit(run, part, share): part for share in shares for part in PARTS}
        for done in as_completed(running):
            scores[running[done]].add(done.result())
            for example in done.result().examples:
                print(f"{running[done]}: {example}", file=sys.stderr, flush=True)
    return scores


def main() -> int:
    """Run it, print the score; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Every step is a crash point.")
    parser.add_argument("--stride", type=int, default=1, help="try every N-th case only")
    parser.add_argument("--first", type=int, default=0, help="and begin with this one")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    share = Share(options.first, options.stride)
    begun = time.perf_counter()
    everything = Score()
    for part, score in run_all(share, options.processes).items():
        cases = score.deaths.total()
        print(f"{part:<12}{cases:>8,} cases in {score.seconds:,.0f} s of a processor")
        everything.add(score)
    print(*everything.lines(), sep="\n")
    print(f"{time.perf_counter() - begun:,.0f} s, {options.processes} processes")
    return int(bool(everything.broken))


if __name__ == "__main__":
    sys.exit(main())
