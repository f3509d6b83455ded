"""Lives of a log up to a death: of the workload, of a recovery, with a disk that fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from strandline.changelog.errors import DiskFull, StorageFailed
from tests.crash.images import Camera, Image
from tests.crash.points import named
from tests.crash.twin import Died, Operation, Outcome, PowerStorage
from tests.crash.workload import Past, Scene


class Share(NamedTuple):
    """Every `stride`-th case from the `first` on, and of these one part.

    A part takes `block` consecutive cases out of each `parts` × `block`. Neighbours leave much the
    same on the disk, so more lives can be spared within one part.
    """

    first: int = 0
    stride: int = 1
    part: int = 0
    parts: int = 1
    block: int = 1

    def has(self, number: int) -> bool:
        chosen, offset = divmod(number, self.stride)
        return offset == self.first and chosen // self.block % self.parts == self.part


def always(_: int) -> bool:
    return True


# Filmed, or stopped ------------------------------------------------------------------


def filmed(
    wanted: Callable[[int], bool],
    durability: str = "fsync",
    storage: PowerStorage | None = None,
    script: type[Scene] = Scene,
) -> list[Image]:
    """Return images of a life, by default of the workload, at the wanted operations."""
    storage = storage or PowerStorage()
    scene = script(storage, durability=durability)
    camera = Camera(f"{durability}: ", storage, scene.past, wanted)
    scene.open()
    scene.play()
    return camera.images


def visited(durability: str = "fsync", script: type[Scene] = Scene) -> list[str]:
    """Return the points that a life, by default the workload, goes through, in order."""
    storage = PowerStorage()
    points = noted(storage)
    scene = script(storage, durability=durability)
    scene.open()
    scene.play()
    return points


def visited_by_recovery(base: Image, death: Outcome, durability: str = "fsync") -> list[str]:
    """Return the points of the opening after a death and of restoring the stores, in order."""
    storage = base.after(death)
    points = noted(storage)
    scene = Scene(storage, base.past, durability=durability)
    scene.open()
    scene.start_task()
    return points


def noted(storage: PowerStorage) -> list[str]:
    """Return a list that fills with the points that a storage goes through."""
    points: list[str] = []

    def note(operation: Operation) -> None:
        if operation.kind != "read":
            points.append(named(storage, operation))

    storage.hook = note
    return points


def image_at(
    points: list[str], point: str, durability: str = "fsync", *, torn: bool = False
) -> Image:
    """Return the image after one point of the workload: of several visits, the one in the
    middle."""
    numbers = [at for at, name in enumerate(points, start=1) if name == point]
    images = filmed(numbers[len(numbers) // 2].__eq__, durability)
    return next(image for image in reversed(images) if image.torn is torn)


def filmed_recovery(
    base: Image, death: Outcome, durability: str, wanted: Callable[[int], bool] = always
) -> list[Image]:
    """Return images of the opening after a death, and of restoring the stores."""
    storage = base.after(death)
    scene = Scene(storage, base.past, durability=durability)

    def past() -> Past:
        return base.past._replace(clock=scene.clock)

    camera = Camera(f"{base.case}; {death.name}; recovery: ", storage, past, wanted)
    scene.open()
    scene.start_task()
    return camera.images


def interrupted(base: Image, death: Outcome, at: int, durability: str) -> Image | None:
    """Return the image after a recovery stopped at an operation; None if it has fewer."""
    storage = base.after(death)
    scene = Scene(storage, base.past, durability=durability)
    disk = FailingDisk(storage, at, None)
    with suppress(Died):
        scene.open()
        scene.start_task()
        return None
    case = f"{base.case}; {death.name}; again at operation {at}, {disk.point}"
    return Image(case, disk.point, storage.clone(), base.past._replace(clock=scene.clock))


# The disk fails -----------------------------------------------------------------------


class Failure(NamedTuple):
    """A way in which the disk fails."""

    name: str
    error: type[StorageFailed]
    lasting: bool = False
    late: bool = False
    """True if the operation was done although it reports a failure."""


FAILURES = (
    Failure("EIO once", StorageFailed),
    Failure("EIO from then on", StorageFailed, lasting=True),
    Failure("EIO once, though it was done", StorageFailed, late=True),
    Failure("ENOSPC once", DiskFull),
    Failure("ENOSPC from then on", DiskFull, lasting=True),
)
NEED_SPACE = ("append", "create", "make_dir", "fsync")


class FailingDisk:
    """Makes a storage fail at its `at`-th operation. Without a failure the process dies there."""

    def __init__(self, storage: PowerStorage, at: int, failure: Failure | None) -> None:
        self.count = 0
        """Number of operations so far."""
        self.point = ""
        """Point at which it struck; empty before that."""
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
