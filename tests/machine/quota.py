"""A disk that is full for a while."""

from __future__ import annotations

from strandline.changelog.errors import DiskFull
from tests.log.power import Operation

NEED_ROOM = ("create", "append", "rename", "make_dir")


class Quota:
    """A hook of PowerStorage that refuses `times` operations that need space, after the first
    `room`.

    `where` restricts it to paths that contain that text.
    """

    def __init__(self, room: int = 0, times: int = 1 << 62, where: str = "") -> None:
        self.room = room
        self.times = times
        self.where = where
        self.refused = 0

    def __call__(self, operation: Operation) -> None:
        if operation.kind not in NEED_ROOM or self.where not in operation.path:
            return
        if self.room > 0:
            self.room -= 1
        elif self.refused < self.times:
            self.refused += 1
            raise DiskFull(f"cannot {operation.kind} {operation.path}: No space left on device")

    @property
    def over(self) -> bool:
        """True once it has refused all operations that it should."""
        return self.refused >= self.times

    def make_room(self) -> None:
        """Refuse nothing from now on."""
        self.times = self.refused
