"""Search for the step that makes the log refuse a commit.

The log refuses a whole commit for one record in it: the record is too large, has no key on a
compacted topic, or has a time that the topic rejects. It is unknown which step has written it. The
worker therefore goes back to the last commit and repeats the work:

1. Each send is checked on its own. The one that would be refused raises an error in its handler.
2. If the log still refuses the commit (for example because a store's change is too large), commits
   are made smaller: half as many *steps* (records, timers, windows, `init`) each time.
3. When a commit of a single step is refused, that step gets a *verdict*. If it is repeated, its
   handler is not called, and the refusal is treated like an error that the handler raised.

A dead letter is sent in such a step too. If the log refuses it, the step gets a verdict of a higher
level: its dead letter is shortened, and at the last level the task fails at that record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from strandline.changelog.errors import InvalidRecord

LAST_LEVEL = 3
"""Level of a verdict at which the task fails instead of sending a dead letter."""

StepId = tuple[str, int, object]
"""Task, partition, and the step within it: topic and offset of a record, or a description."""


@dataclass(slots=True)
class StepFailure:
    """Verdict on a step whose commit the log refused: its handler is not called again."""

    error: Exception
    """Error raised by the step's handler, or the log's reason for refusing its commit."""
    refusal: Exception
    """Reason why the log refused the last attempt to commit the step."""
    level: int
    """Level to which its dead letter is shortened; see `failures.dead_letter_headers`."""
    applied: bool = False
    """True if the step was repeated since the last commit."""


class Trial:
    """Number of steps that a worker may run before its next commit. Shared with its instances."""

    def __init__(self) -> None:
        self.done = 0
        """Number of steps since the last commit."""
        self.size: float = math.inf
        """Maximum number of steps in the next commit; infinite without a search."""
        self.is_checking = False
        """True if each send is checked."""
        self.check: Callable[[str, pa.RecordBatch], None] = _unchecked
        """Raises InvalidRecord for a record that the log would refuse in the given topic."""
        self._remaining = 0
        """Number of steps of refused commits that are not committed yet."""
        self._verdicts: dict[StepId, StepFailure] = {}

    @property
    def left(self) -> float:
        """Number of steps allowed before the next commit; infinite without a search."""
        return self.size - self.done

    @property
    def is_over(self) -> bool:
        """True if a commit is due because no further step is allowed before it."""
        return self.done >= self.size

    @property
    def is_searching(self) -> bool:
        """True during a search, in which steps run one after another."""
        return self.is_checking or self.size != math.inf or bool(self._verdicts)

    @property
    def has_verdicts(self) -> bool:
        """True if steps must be compared with verdicts."""
        return bool(self._verdicts)

    def limited(self, records: int) -> int:
        """Return `records`, reduced to the number allowed before the next commit."""
        return records if self.size == math.inf else max(0, min(records, int(self.left)))

    def verdict(self, step: StepId) -> StepFailure | None:
        """Return the verdict on a step that is about to run; None if its handler may be called."""
        found = self._verdicts.get(step)
        if found is not None:
            found.applied = True
        return found

    def refused(self, error: InvalidRecord, mark_refused: Callable[[], bool]) -> None:
        """Choose how the work of a refused commit is repeated.

        Args:
            error: The log's error.
            mark_refused: Marks the only step of the commit as refused; returns False if there is
                none that can have caused the error.

        Raises:
            InvalidRecord: `error`, if no step has caused it.
        """
        if not self.done:
            raise error
        self._remaining = max(self._remaining, self.done)
        if not self.is_checking:
            self.is_checking = True
        elif self.done > 1:
            self.size = max(1, self.done // 2)
        elif not mark_refused():
            raise error

    def mark_refused(self, step: StepId, error: Exception | None, refusal: Exception) -> None:
        """Record the verdict on a step that was refused when committed alone.

        Args:
            step: The step.
            error: Error of its handler if the log refused the dead letter; else None.
            refusal: The log's error.
        """
        before = self._verdicts.get(step)
        level = 0 if error is None else 1 if before is None else before.level + 1
        self._verdicts[step] = StepFailure(error or refusal, refusal, level)
        self.size = 1

    def committed(self) -> None:
        """Note that all steps are committed; end the search when those of refused commits are."""
        left = {at: one for at, one in self._verdicts.items() if not one.applied}
        was_clean = len(left) == len(self._verdicts)
        self._verdicts = left
        self._remaining -= self.done
        if was_clean:  # else the next step is likely to be refused as well
            self.size *= 2
        if self._remaining <= 0:
            self.size, self.is_checking, self._remaining = math.inf, False, 0
            self._verdicts.clear()
        self.done = 0

    def rewound(self) -> None:
        """Note that all steps since the last commit were undone and will be repeated."""
        self.done = 0
        for verdict in self._verdicts.values():
            verdict.applied = False


def _unchecked(_topic: str, _columns: pa.RecordBatch) -> None:
    """Accept every record: the check before a worker sets its own."""
