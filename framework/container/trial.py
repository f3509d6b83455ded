"""Finding the record at fault for a commit that the log refuses.

The log refuses a whole commit for one record in it: it is too large, has no key on a compacted topic,
or a time that the topic does not take. Which of the records that were handled has sent it is not known
then. So the worker goes back to the last commit and does the same again, first with each send checked
on its own: the one that would be refused raises in its handler. If the log refuses the commit even so
(a store's change is too large, say), the worker makes smaller ones, half as many *steps* (records,
timers, windows, `init`) each time, until one of a single step is refused. That step gets a *verdict*:
when it comes again its handler is not called, and the refusal is treated as if the handler had raised it.

A dead letter is sent in such a step too. If the log refuses it, the same verdict comes again at a
higher level: the letter is made smaller, and at last the task fails at that record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from strandline.changelog.errors import InvalidRecord

LAST_LEVEL = 3
"""Level of a verdict at which no dead letter is tried any more: the task fails."""

StepId = tuple[str, int, object]
"""Task, partition, and the step in there: a record's topic and offset, or a description."""


@dataclass(slots=True)
class StepFailure:
    """What a step failed with: it is not run again."""

    error: Exception
    """Why it failed: what its handler raised, or why the log refused what it had done."""
    refusal: Exception
    """Why the log refused the last attempt to commit it."""
    level: int
    """How much smaller its dead letter has to be made."""
    applied: bool = False
    """Whether the step has come again since the last commit."""


class Trial:
    """How many steps a worker may do before its next commit. Shared with its task instances."""

    def __init__(self) -> None:
        self.done = 0
        """Steps since the last commit."""
        self.size: float = math.inf
        """Steps that the next commit may have."""
        self.is_checking = False
        """Whether each send is checked."""
        self.check: Callable[[str, pa.RecordBatch], None] = _unchecked
        """Raises InvalidRecord for a record that the log would refuse in that topic."""
        self._remaining = 0
        """Steps to come that were part of a refused commit."""
        self._verdicts: dict[StepId, StepFailure] = {}

    @property
    def left(self) -> float:
        """Steps that may be done before the next commit; infinite while nothing is searched for."""
        return self.size - self.done

    @property
    def is_over(self) -> bool:
        """Whether a commit is due because no further step may be done."""
        return self.left <= 0

    @property
    def has_verdicts(self) -> bool:
        """Whether steps must be compared with verdicts."""
        return bool(self._verdicts)

    def limited(self, records: int) -> int:
        """`records`, or as many of them as may be handled before the next commit."""
        return records if self.size == math.inf else max(0, min(records, int(self.left)))

    def verdict(self, step: StepId) -> StepFailure | None:
        """The verdict on a step that is about to run; None if it is to be run."""
        found = self._verdicts.get(step)
        if found is not None:
            found.applied = True
        return found

    def refused(self, error: InvalidRecord, condemn: Callable[[], bool]) -> None:
        """The log refused a commit: decide how what it covered is done again.

        Args:
            error: What the log said.
            condemn: Calls `condemn` for the last step, if there is one that can be at fault.

        Raises:
            InvalidRecord: `error`, if it is no step's fault.
        """
        if not self.done:
            raise error
        self._remaining = max(self._remaining, self.done)
        if not self.is_checking:
            self.is_checking = True
        elif self.done > 1:
            self.size = max(1, self.done // 2)
        elif not condemn():
            raise error

    def condemn(self, step: StepId, error: Exception | None, refusal: Exception) -> None:
        """A commit of this one step was refused.

        Args:
            step: The step.
            error: What its handler raised, if the log refused the dead letter; else None.
            refusal: What the log said.
        """
        before = self._verdicts.get(step)
        level = 0 if error is None else 1 if before is None else before.level + 1
        self._verdicts[step] = StepFailure(error or refusal, refusal, level)
        self.size = 1

    def committed(self) -> None:
        """All that was done is committed."""
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
        """All that was done since the last commit is undone, and comes again."""
        self.done = 0
        for verdict in self._verdicts.values():
            verdict.applied = False


def _unchecked(_topic: str, _columns: pa.RecordBatch) -> None:
    """Refuse nothing."""
