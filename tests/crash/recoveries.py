"""Stops within a recovery from a death, and again within the recovery after it."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

from tests.crash.images import Image, Score, Tried, judge
from tests.crash.lives import (
    Share,
    filmed_recovery,
    image_at,
    interrupted,
    visited,
    visited_by_recovery,
)
from tests.crash.twin import Outcome

ROTATION = {"fsync": 6, "os": 24}
"""Stride over the images of one recovery; the next recovery starts at the next image.

With "os" a kill rolls all partitions, so a recovery has many more operations.
"""


class Base(NamedTuple):
    """Starting point of the first recovery."""

    image: Image
    death: Outcome
    durability: str

    def stop_twice(self, score: Score, images: list[Image], chance: Random) -> None:
        """Stop at each image of the recovery, then once more at a random operation of the next.

        The second recovery is taken to be as long as the first.
        """
        operations, tried = len(visited_by_recovery(*self)), Tried()
        for image in images:
            death = chance.choice(image.any_death(self.durability))
            judge(score, image, death, self.durability, tried)
            at = chance.randrange(operations) + 1
            again = interrupted(image, death, at, self.durability)
            if again is not None:
                last = chance.choice(again.any_death(self.durability))
                judge(score, again, last, self.durability, tried)


def recoveries(share: Share, durability: str = "fsync") -> Score:
    """Stop in the recovery from a death after each point of the workload, at some operations."""
    score, points, rotation = Score(), visited(durability), ROTATION[durability]
    for at, point in enumerate(dict.fromkeys(points)):
        if share.has(at):
            image = image_at(points, point, durability)
            # kill -9, a cut that loses everything, a cut that loses nothing
            base = Base(image, image.any_death(durability)[: at % 3 + 1][-1], durability)
            base.stop_twice(score, filmed_recovery(*base)[at % rotation :: rotation], Random(at))
    return score


def recoveries_without_fsync(share: Share) -> Score:
    """Stop in recoveries with durability "os"."""
    return recoveries(share, "os")


def known_recoveries(share: Share) -> Score:
    """Stop at every operation of the recoveries that together have all points."""
    score = Score()
    for at, base in enumerate(known()):
        base.stop_twice(score, filmed_recovery(*base, share.has), Random(at))
    return score


# Recoveries that have all points ------------------------------------------------------


class Crash(NamedTuple):
    """A death in the middle of the workload."""

    durability: str
    point: str
    torn: bool
    """True if the operation at the point, an append, is done in part only."""
    death: str
    """Name of the death: `kill -9`, or the outcome of a power cut."""


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
    Crash("fsync", "pin.pins.link", False, "kill -9"),
)
"""Crashes whose recoveries go, together, through every point that recoveries have."""


@cache
def known() -> list[Base]:
    """Return the starting points that the CRASHES leave."""
    points = {durability: visited(durability) for durability in ("fsync", "os")}
    bases = []
    for durability, point, torn, name in CRASHES:
        image = image_at(points[durability], point, durability, torn=torn)
        named = {death.name: death for death in image.any_death(durability)}
        bases.append(Base(image, named[name], durability))
    return bases
