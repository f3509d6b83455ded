"""The field of a run: a log, workers, pens (producers), and a scribe (reader).

Subclasses in folder.py and kafka.py know the kind of log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from strandline.changelog.errors import StrandlineError
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from tests.chaos.pens import Pen
from tests.chaos.report import Report
from tests.chaos.scribe import Scribe
from tests.workers.pipeline import Pipeline, pipeline
from tests.workers.processes import Process

INPUTS = ("words", "pipeline-letter-repartition", "pipeline-per-second-repartition")
OUTPUTS = ("figures", "letters", "windows", "late")
AHEAD = 40_000
"""Maximum number of records that wait for the workers before the pens pause."""


class Field:
    """All parts of a run, on a log that is already open here."""

    def __init__(
        self,
        attached: Log,
        address: str,
        said: Path,
        *,
        typed: bool,
        workers: int,
        seed: int,
        guarantee: str,
        careless: bool,
        bound: float,
    ) -> None:
        self.attached = attached
        self.typed = typed
        self.slots: list[Process | None] = [None] * workers
        self.frozen: set[int] = set()
        self.starts = 0
        self.address = address
        self._said = said
        self._manner = [guarantee, *(["careless"] if careless else [])]
        self._bound = bound
        self.made: Pipeline = pipeline(attached, recent=True, windows=True, typed=typed)
        self.made.app.prepare()
        self.prepare()
        for slot in range(workers):
            self.start(slot)
        self.scribe = Scribe(self.made)
        self.pens = [Pen(self.made, number, seed, self.is_far_behind) for number in range(2)]

    # Overridden for each kind of log --------------------------------------------------

    def prepare(self) -> None:
        """Set up the log before workers start."""

    def machine(self, slot: int) -> Path:
        """Return the folder of a worker's machine, which holds its stores."""
        raise NotImplementedError

    def machines(self) -> list[Path]:
        """Return all machines so far. Their stores are in `state`."""
        raise NotImplementedError

    def is_excused(self, process: Process) -> bool:
        """Return True if a worker has ended for a reason that the field caused."""
        return False

    def repair(self) -> None:
        """Undo what was done to the log."""

    def come_to_rest(self) -> None:
        """Let the log finish its background work, after all input was handled."""

    def count(self, report: Report) -> None:
        """Add the counts that only this kind of log has."""

    def check(self) -> list[str]:
        """Return what is wrong with the log after all workers have ended."""
        raise NotImplementedError

    # Workers --------------------------------------------------------------------------

    def start(self, slot: int) -> None:
        said = self._said / f"worker-{slot}-{self.starts}.log"
        state = self.machine(slot) / "state"
        command = ["tests.chaos.worker", self.address, str(state), *self._manner]
        self.slots[slot] = Process(command, said, bound=self._bound)
        self.starts += 1

    def running(self) -> list[int]:
        """Return the slots of workers that run and are not frozen."""
        return [
            slot
            for slot, process in enumerate(self.slots)
            if process is not None and process.is_running and slot not in self.frozen
        ]

    def process(self, slot: int) -> Process:
        process = self.slots[slot]
        assert process is not None
        return process

    def end(self, slot: int) -> list[str]:
        """End a worker with SIGTERM. Return what was wrong with that.

        A worker that was only just started may die of the signal.
        """
        process = self.process(slot)
        try:
            status: int | None = process.end(60)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGUSR2)  # makes it print the stacks of its threads
            wait_for(lambda: "Current thread" in process.text(), 5, "its word")
            status = None
            process.kill()
        said = process.text()
        unready = status == -signal.SIGTERM and "takes up" not in said
        if status == 0 or unready or self.is_excused(process):
            return []
        return [f"worker {slot} was told to end, and ended with {status}: {said[-8000:]}"]

    def thaw(self) -> None:
        for slot in self.frozen:
            self.process(slot).thaw()
        self.frozen.clear()

    def tend(self) -> list[str]:
        """Restart excused workers. Return the reasons why others have ended."""
        wrong = []
        for slot, process in enumerate(self.slots):
            if process is not None and not process.is_running:
                if self.is_excused(process):
                    self.start(slot)
                else:
                    said = process.text()[-8000:]
                    wrong.append(f"worker {slot} ended with {process.status}: {said}")
        return wrong

    def text(self) -> str:
        """Return all log messages of workers."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._said.iterdir()))

    # The log --------------------------------------------------------------------------

    def ends(self) -> dict[TopicPartition, int]:
        every = [
            TopicPartition(topic, number)
            for topic in (*INPUTS, *OUTPUTS)
            for number in range(self.made.app.broker().topic(topic).partitions)
        ]
        return {tp: e.high_watermark for tp, e in self.made.app.broker().offsets(every).items()}

    def committed(self) -> dict[TopicPartition, int]:
        found = self.made.app.broker().committed("pipeline", require_stable=False)
        return {tp: offset.offset for tp, offset in found.items()}

    def is_far_behind(self) -> bool:
        try:
            ends, committed = self.ends(), self.committed()
        except StrandlineError:
            return True
        return sum(e - committed.get(tp, 0) for tp, e in ends.items() if tp.topic in INPUTS) > AHEAD

    def is_settled(self) -> bool:
        """Return True once all input is committed and the scribe has read all outputs."""
        with contextlib.suppress(StrandlineError):
            ends, committed = self.ends(), self.committed()
            done = all(
                committed.get(tp, 0) >= end for tp, end in ends.items() if tp.topic in INPUTS
            )
            return done and self.scribe.is_at(ends)
        return False

    def left_open(self) -> list[str]:
        """Return partitions with a transaction that was never ended."""
        broker = self.made.app.broker()
        every = [
            TopicPartition(info.name, number)
            for info in broker.topics()
            for number in range(info.partitions)
        ]
        return [
            f"{tp}: stable up to {e.last_stable_offset} of {e.high_watermark}"
            for tp, e in broker.offsets(every).items()
            if e.last_stable_offset != e.high_watermark
        ]

    def delete_read(self) -> int:
        """Delete committed input and read output. Return the number of records deleted."""
        broker, committed = self.made.app.broker(), self.committed()
        before = {tp: min(committed.get(tp, 0), at) for tp, at in self.scribe.positions.items()}
        deleted = 0
        for tp, at in before.items():
            upto = at if tp.topic in INPUTS else self.scribe.positions[tp]
            start = broker.offsets([tp])[tp].log_start
            if upto > start:
                deleted += broker.delete_records(tp, upto) - start
        return deleted

    # The end --------------------------------------------------------------------------

    def finish(self, timeout: float) -> None:
        """Stop the pens, and wait until all input is handled."""
        self.repair()
        self.thaw()
        for slot, process in enumerate(self.slots):
            if process is None or not process.is_running:
                self.start(slot)
        for pen in self.pens:
            pen.stop()
        wait_for(self.is_settled, timeout, "everything to be handled")
        self.scribe.stop()
        self.come_to_rest()

    def close(self) -> list[str]:
        """End the workers with SIGTERM. Return what was wrong with that."""
        wrong = []
        for slot, process in enumerate(self.slots):
            if process is not None and process.is_running:
                process.thaw()
                wrong += self.end(slot)
        self.made.app.close()
        self.attached.close()
        return wrong

    def kill_all(self) -> None:
        """Kill every running process."""
        for process in self.slots:
            if process is not None and process.is_running:
                process.thaw()
                process.kill()


def wait_for(condition: Callable[[], bool], timeout: float, what: str) -> float:
    """Wait until the condition holds. Return the seconds it took. Raises TimeoutError."""
    begun = time.monotonic()
    pause = threading.Event()
    while not condition():
        if time.monotonic() - begun > timeout:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        pause.wait(0.02)
    return time.monotonic() - begun
