"""Every step is a crash point: stop the workload at each, check the remaining files, and continue.

    stops       before, after, and in the middle of each operation × deaths
    torn        each append cut off at every byte × a death
    failures    an EIO or ENOSPC at each operation, once or from then on × deaths
    windows     stops, and failures, in the life of a stream with windows (tests/crash/windowed.py)
    recoveries  stops at operations of the recovery from a death, twice in a row; at each
                operation of those that have, together, every point of a recovery
    pairs       two failures, in one life and in the recovery or life after it, drawn from a seed

After the last death the log is opened, compared with the promises (tests/crash/oracle.py), used
by all clients as if nothing had happened, judged again, closed and checked.

    python -m tests.crash.battery [--only PART] [--stride N] [--first N] [--processes N]

runs everything and prints the score; with a stride, every N-th case from the first on. A whole
run also fails if a point of the table had neither a stop nor a failure.
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
from unittest import mock

from strandline.changelog.embedded.cleaning import rewriting
from strandline.changelog.embedded.context import LogContext
from strandline.framework import patience
from strandline.statestore import ranges
from tests.cleaning import little_memory
from tests.crash.images import Image, Score, Tried, judge, promised
from tests.crash.lives import FAILURES, FailingDisk, Failure, Share, filmed
from tests.crash.oracle import Violation
from tests.crash.points import AFTERMATH, POINTS
from tests.crash.recoveries import known_recoveries, recoveries, recoveries_without_fsync
from tests.crash.torn import torn
from tests.crash.twin import Died, PowerStorage
from tests.crash.workload import Scene, WindowedScene
from tests.log.power import taking_turns

TWO_KEYS = 150
"""Bytes for a pass of the cleaner: room for two keys, so that more keys are spilled."""

# Stops --------------------------------------------------------------------------------


def stops(share: Share, durability: str = "fsync", script: type[Scene] = Scene) -> Score:
    """Stop at each operation × deaths."""
    score, tried, known = Score(), Tried(), list[object]()
    for number, image in enumerate(filmed(share.has, durability, script=script)):
        if image.past.marks() != known:
            tried, known = Tried(), image.past.marks()
        for death in image.deaths(share.first + share.part + number, durability):
            judge(score, image, death, durability, tried)
    return score


def stops_without_fsync(share: Share) -> Score:
    """Stop at each operation × deaths, with durability "os"."""
    return stops(share, "os")


def stops_of_windows(share: Share) -> Score:
    """Stop at each operation of a life of a stream with windows × deaths."""
    return stops(share, script=WindowedScene)


# Failures of the disk -----------------------------------------------------------------


def failures(share: Share, script: type[Scene] = Scene) -> Score:
    """Fail with each kind of disk failure at each operation × a death."""
    score = Score()
    for number in count(1):
        if not share.has(number):
            continue
        for at, failure in enumerate(FAILURES):
            image = failing_life(score, number, failure, script)
            if image is None:
                return score
            if image.point:
                every = image.any_death()
                judge(score, image, every[(number + at) % len(every)])
    return score


def failures_of_windows(share: Share) -> Score:
    """Fail at each operation of a life of a stream with windows × a death."""
    return failures(share, WindowedScene)


def failing_life(
    score: Score, number: int, failure: Failure, script: type[Scene] = Scene
) -> Image | None:
    """Return the image after a life whose disk fails at an operation; None if it has fewer."""
    storage = PowerStorage()
    disk = FailingDisk(storage, number, failure)
    scene = script(storage, may_fail=disk.has_struck)
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


# Pairs --------------------------------------------------------------------------------

PAIRS = 1_500
OPERATIONS = 900
"""Approximate number of operations of the workload."""
OPERATIONS_OF_THE_NEXT = 250


def pairs(share: Share) -> Score:
    """Run PAIRS cases, each from its seed."""
    score = Score()
    for seed in range(PAIRS):
        if share.has(seed):
            pair(score, seed)
    return score


def pair(score: Score, seed: int) -> None:
    """Run a life with a failure, another one with a failure, and a death after each."""
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
    score.visit(first.point)
    judge(score, second, chance.choice(second.any_death()))


def unlucky(
    case: str,
    chance: Random,
    scene: Scene,
    storage: PowerStorage,
    life: Callable[[Scene], None],
    operations: int,
) -> Image:
    """Run a life in which one thing fails."""
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
    "torn": torn,
    "failures": failures,
    "windows": stops_of_windows,
    "windows, failures": failures_of_windows,
    "recoveries": recoveries,
    "recoveries, os": recoveries_without_fsync,
    "recoveries, all points": known_recoveries,
    "pairs": pairs,
}
CHUNKS = 6
"""Number of shares of a part for each process."""
BLOCKS = {"stops": 32, "windows": 32, "stops, os": 32, "torn": 512, "recoveries, all points": 16}
"""Number of consecutive cases in one share. Neighbours spare each other's lives (`Tried`)."""


@contextmanager
def alone() -> Iterator[None]:
    """Run without threads, pauses and log messages, so that each run is the same."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.object(LogContext, "in_parallel", taking_turns),
            mock.patch.object(patience, "PATIENCE_SECONDS", 0.0),
            little_memory(TWO_KEYS),
            mock.patch.object(rewriting, "WRITE_BACK_BYTES", 1),
            mock.patch.object(rewriting, "MAX_WRITE_BACKS", 1),
            mock.patch.object(ranges, "RANGE_MIN_KEYS", 1),
        ):
            yield
    finally:
        logging.disable(before)


def run(part: str, share: Share) -> Score:
    """Run a share of one part."""
    begun = time.perf_counter()
    with alone():
        score = PARTS[part](share)
    score.seconds = time.perf_counter() - begun
    return score


def run_all(parts: list[str], whole: Share, processes: int) -> dict[str, Score]:
    """Run these parts in several processes. Print progress and broken promises at once."""
    chunks = processes * CHUNKS
    scores = {part: Score() for part in parts}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = {
            pool.submit(
                run, part, whole._replace(part=n, parts=chunks, block=BLOCKS.get(part, 1))
            ): part
            for n in range(chunks)
            for part in parts
        }
        for number, done in enumerate(as_completed(running), start=1):
            part, score = running[done], done.result()
            scores[part].add(score)
            cases = f"{score.deaths.total():,} cases of {part}, {score.broken.total()} broken"
            print(f"{number} of {len(running)}: {cases}", file=sys.stderr, flush=True)
            for example in score.examples:
                print(f"{part}: {example}", file=sys.stderr, flush=True)
    return scores


def gaps(score: Score) -> list[str]:
    """Return what the whole battery left out: points without a stop, or without a name."""
    struck = score.points.keys()
    return [
        *(f"no stop or failure at {point}" for point in sorted(POINTS - struck)),
        *(f"not in the table of points: {point}" for point in sorted(struck - POINTS - AFTERMATH)),
    ]


def main() -> int:
    """Run the battery and print the score. Return 1 if a promise was broken or a point left out."""
    parser = argparse.ArgumentParser(description="Every step is a crash point.")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (and others)")
    parser.add_argument("--stride", type=int, default=1, help="try every N-th case only")
    parser.add_argument("--first", type=int, default=0, help="and begin with this one")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    share = Share(options.first, options.stride)
    begun = time.perf_counter()
    everything = Score()
    for part, score in run_all(options.only or list(PARTS), share, options.processes).items():
        cases = score.deaths.total()
        print(f"{part:<24}{cases:>8,} cases in {score.seconds:,.0f} s of a processor")
        everything.add(score)
    left_out = gaps(everything) if options.stride == 1 and not options.only else []
    print(*everything.lines(), *left_out, sep="\n")
    print(f"{time.perf_counter() - begun:,.0f} s, {options.processes} processes")
    return int(bool(everything.broken or left_out))


if __name__ == "__main__":
    sys.exit(main())
