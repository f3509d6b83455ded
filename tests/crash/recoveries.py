"""Stops within a recovery from a death, and again within the next one."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

from tests.crash.images import Image, Score, Tried, judge
from tests.crash.lives import Share, filmed_recovery, image_at, interrupted, visited
from tests.crash.twin import Outcome

ROTATION = {"fsync": 6, "os": 24}
"""Of the images of one recovery every sixth is tried, of the next ones the others. With "os" all
partitions are rolled after a kill, so there are many more."""
LONGEST = 60
"""The second recovery is stopped at one of so many operations, if it has them."""


def recoveries(share: Share, durability: str = "fsync") -> Score:
    """From a death behind each point of the workload: some operations of each recovery."""
    score = Score()
    points = visited(durability)
    for at, point in enumerate(dict.fromkeys(points)):
        if share.has(at):
            base = image_at(points, point, durability)
            death = base.any_death(durability)[: at % 3 + 1][-1]  # kill -9, nothing is kept, all is
            rotation = ROTATION[durability]
            images = filmed_recovery(base, death, durability)[at % rotation :: rotation]
            _stop_twice(score, images, Random(at), durability)
    return score


def recoveries_without_fsync(share: Share) -> Score:
    """The same with durability "os"."""
    return recoveries(share, "os")


def known_recoveries(share: Share) -> Score:
    """Every operation of those recoveries that have all points."""
    score = Score()
    for at, (base, death, durability) in enumerate(known()):
        images = filmed_recovery(base, death, durability, share.has)
        _stop_twice(score, images, Random(at), durability)
    return score


def _stop_twice(score: Score, images: list[Image], chance: Random, durability: str) -> None:
    """Of each image of a recovery one death; and another one within the recovery from that."""
    tried = Tried()
    for image in images:
        death = chance.choice(image.any_death(durability))
        judge(score, image, death, durability, tried)
        again = interrupted(image, death, chance.randrange(1, LONGEST), durability)
        if again is not None:
            judge(score, again, chance.choice(again.any_death(durability)), durability, tried)


# Those that have all points -----------------------------------------------------------


class Crash(NamedTuple):
    """A death in the middle of the workload."""

    durability: str
    point: str
    torn: bool
    """Whether the operation there, an append, is done in part."""
    death: str
    """`kill -9`, or what the power cut leaves."""


CRASHES = (
    Crash("os", "roll.manifest.append", True, "kill -9"),
    Crash("os", "roll.index.create", False, "kill -9"),
    Crash("fsync", "roll.offsets.create", False, "kill -9"),
    Crash("fsync", "roll.transactions.create", False, "kill -9"),
    Crash("fsync", "roll.aborted.create", False, "kill -9"),
    Crash("fsync", "abort.segment.append", False, "nothing"),
    Crash("fsync", "alter.topics.create", False, "kill -9"),
    Crash("fsync", "recovery.folder.strandline.create", False, "kill -9"),
    Crash("fsync", "recovery.create.topics.create", False, "kill -9"),
    Crash("fsync", "recovery.catalog.topics.fsync", False, "kill -9"),
    Crash("fsync", "init.transactions.append", True, "kill -9"),
    Crash("fsync", "append.segment.append", True, "kill -9"),
    Crash("fsync", "offsets.offsets.append", True, "kill -9"),
    Crash("fsync", "roll.producers.fsync", False, "kill -9"),
    Crash("fsync", "restore.store.create", False, "kill -9"),
)
"""Their recoveries go, together, through every point that recoveries have."""


@cache
def known() -> list[tuple[Image, Outcome, str]]:
    """What is there before each of the CRASHES, the death itself, and the durability."""
    points = {durability: visited(durability) for durability in ("fsync", "os")}
    deaths = []
    for durability, point, torn, name in CRASHES:
        image = image_at(points[durability], point, durability, torn=torn)
        named = {death.name: death for death in image.any_death(durability)}
        deaths.append((image, named[name], durability))
    return deaths
