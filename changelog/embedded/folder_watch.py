"""Detection of a lost log folder. Its owner then stops for good and leaves the files alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.errors import FolderLost

_log = logging.getLogger("strandline")


class FolderWatch:
    """Remembers that the folder was lost.

    The owner does not resume when the folder is put back, because another process may have changed
    it.
    """

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._lost: FolderLost | None = None

    def check(self) -> None:
        """Raise FolderLost if `finds_loss` has found the folder lost before."""
        if self._lost is not None:
            raise FolderLost(str(self._lost)) from self._lost

    def finds_loss(self, partitions: Iterable[Partition]) -> bool:
        """Return True if the folder is lost.

        The first time, all partitions are poisoned and waiting readers are woken up.
        """
        if self._lost is None:
            try:
                self._context.storage.check()
            except FolderLost as error:
                self._lost = error
                _log.error("the log stops: %s", error, extra={"error": error})
                for partition in partitions:
                    partition.gate.poison(error)
                self._context.notifier.notify()
        return self._lost is not None
