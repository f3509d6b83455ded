"""The field on which it happens: a log in a small file system, workers, pens, a scribe."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import changelog
from changelog.errors import StrandlineError
from changelog.records import TopicPartition
from tests.chaos.pens import Pen
from tests.chaos.scribe import Scribe
from tests.chaos.sweeps import Sweeps
from tests.workers.pipeline import PARTITIONS, Pipeline, pipeline
from tests.workers.processes import Process

INPUTS = ("words", "pipeline-letter-repartition")
OUTPUTS = ("figures", "letters")
AHEAD = 40_000
"""So many records may wait for the workers before the pens do."""


class Field:
    """Everything that runs. The process that is here only attaches: it can own nothing."""

    def __init__(
        self,
        folder: Path,
        said: Path,
        *,
        workers: int,
        seed: int,
        guarantee: str,
        careless: bool,
        bound: float,
    ) -> None:
        self.log = folder / "log"
        self.ballast = folder / "ballast"
        self.slots: list[Process | None] = [None] * workers
        self.frozen: set[int] = set()
        self.starts = 0
        self._said = said
        self._manner = [guarantee, *(["careless"] if careless else [])]
        self._bound = bound
        self.attached = changelog.open(self.log, role="attach_or_spawn")
        self.made: Pipeline = pipeline(self.attached, recent=True)
        self.made.app.prepare()
        for topic in (*INPUTS, *OUTPUTS):
            self.attached.alter_topic(topic, config={"segment.bytes": str(1 << 20)})
        self.sweeps = Sweeps(self.made.app.broker, self.log)
        for slot in range(workers):
            self.start(slot)
        self.scribe = Scribe(self.made)
        self.pens = [Pen(self.made, number, seed, self.is_far_behind) for number in range(2)]

    # Workers --------------------------------------------------------------------------

    def start(self, slot: int) -> None:
        said = self._said / f"worker-{slot}-{self.starts}.log"
        state = self._machine(slot) / "state"
        command = ["tests.chaos.worker", str(self.log), str(state), *self._manner]
        self.slots[slot] = Process(command, said, bound=self._bound)
        self.starts += 1

    def _machine(self, slot: int) -> Path:
        """Where a worker keeps its stores: one in two has a disk of its own, others share one."""
        return self.log.with_name(f"machine-{slot}") if slot % 2 else self.log

    def machines(self) -> list[Path]:
        """All that there were; the stores are in `state`."""
        return [self.log, *sorted(self.log.parent.glob("machine-*"))]

    def running(self) -> list[int]:
        """Slots of workers that are there and not frozen."""
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
        """End a worker in order; what was wrong with that.

        It may have only just been started, and know no better than to die, or find no room to
        commit what it has.
        """
        process = self.process(slot)
        status, said = process.end(60), process.text()
        unready = status == -signal.SIGTERM and "takes up" not in said
        if not status or unready or has_no_room(process):
            return []
        return [f"worker {slot} was told to end, and ended with {status}: {said[-2000:]}"]

    def thaw(self) -> None:
        for slot in self.frozen:
            self.process(slot).thaw()
        self.frozen.clear()

    def tend(self) -> list[str]:
        """Workers that have found no room to open the log are started again; why others ended."""
        wrong = []
        for slot, process in enumerate(self.slots):
            if process is not None and not process.is_running:
                if has_no_room(process):
                    self.start(slot)
                else:
                    said = process.text()[-1500:]
                    wrong.append(f"worker {slot} ended with {process.status}: {said}")
        return wrong

    def text(self) -> str:
        """All that workers have logged."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._said.iterdir()))

    # The log --------------------------------------------------------------------------

    def owner(self) -> int | None:
        """Process id of the log's owner, if it is none of ours to spare."""
        with contextlib.suppress(OSError):
            found = re.match(r"pid (\d+)", (self.log / "lock").read_text())
            if found and int(found[1]) != os.getpid() and _is_alive(int(found[1])):
                return int(found[1])
        return None

    def ends(self) -> dict[TopicPartition, int]:
        every = [
            TopicPartition(topic, number)
            for topic in (*INPUTS, *OUTPUTS)
            for number in range(self.made.app.broker.topic(topic).partitions)
        ]
        return {tp: e.high_watermark for tp, e in self.made.app.broker.offsets(every).items()}

    def committed(self) -> dict[TopicPartition, int]:
        found = self.made.app.broker.committed("pipeline", require_stable=False)
        return {tp: offset.offset for tp, offset in found.items()}

    def changelogs(self) -> dict[TopicPartition, int]:
        """The end of each changelog from which keys are deleted."""
        recent = [TopicPartition("pipeline-recent-changelog", n) for n in range(PARTITIONS)]
        return {tp: e.high_watermark for tp, e in self.made.app.broker.offsets(recent).items()}

    def is_purged(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether deletions up to these ends have been removed."""
        with contextlib.suppress(StrandlineError):
            now = self.made.app.broker.offsets(list(ends))
            return all(now[tp].purged_end >= end for tp, end in ends.items())
        return False

    def is_far_behind(self) -> bool:
        try:
            ends, committed = self.ends(), self.committed()
        except StrandlineError:
            return True
        return sum(e - committed.get(tp, 0) for tp, e in ends.items() if tp.topic in INPUTS) > AHEAD

    def is_settled(self) -> bool:
        """Whether all input is committed, and the scribe has read all that came of it."""
        with contextlib.suppress(StrandlineError):
            ends, committed = self.ends(), self.committed()
            done = all(
                committed.get(tp, 0) >= end for tp, end in ends.items() if tp.topic in INPUTS
            )
            return done and self.scribe.is_at(ends)
        return False

    def left_open(self) -> list[str]:
        """Partitions with a transaction that nobody has ended."""
        broker = self.made.app.broker
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
        """Delete input that is committed, and output that the scribe has read; how many records."""
        broker, committed = self.made.app.broker, self.committed()
        before = {tp: min(committed.get(tp, 0), at) for tp, at in self.scribe.positions.items()}
        deleted = 0
        for tp, at in before.items():
            upto = at if tp.topic in INPUTS else self.scribe.positions[tp]
            start = broker.offsets([tp])[tp].log_start
            if upto > start:
                deleted += broker.delete_records(tp, upto) - start
        return deleted

    def fill_disk(self) -> None:
        free = shutil.disk_usage(self.ballast.parent).free
        with contextlib.suppress(OSError), self.ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, free)
        with contextlib.suppress(OSError), self.ballast.open("ab") as file:
            while True:  # what is left after rounding
                file.write(b"\0" * 4096)
                file.flush()

    def free_disk(self) -> None:
        self.ballast.unlink(missing_ok=True)

    # The end --------------------------------------------------------------------------

    def settle(self, timeout: float) -> None:
        """Let the pens finish, and everybody catch up."""
        self.free_disk()
        self.thaw()
        for slot, process in enumerate(self.slots):
            if process is None or not process.is_running:
                self.start(slot)
        for pen in self.pens:
            pen.stop()
        wait_for(self.is_settled, timeout, "everything to be handled")
        self.scribe.stop()
        wait_for(self.is_cleaned, 60, "the cleaner to get over what had failed")
        self.sweeps.stop()

    def is_cleaned(self) -> bool:
        """Whether no pass has failed that was not done since."""
        with contextlib.suppress(StrandlineError):
            return not self.sweeps.failing()
        return False

    def close(self) -> list[str]:
        """End the workers, in order; what was wrong with that."""
        wrong = []
        for slot, process in enumerate(self.slots):
            if process is not None and process.is_running:
                process.thaw()
                wrong += self.end(slot)
        self.made.app.close()
        self.attached.close()
        return wrong

    def kill_all(self) -> None:
        for process in self.slots:
            if process is not None and process.is_running:
                process.thaw()
                process.kill()
        with contextlib.suppress(OSError):
            if (pid := self.owner()) is not None:
                os.kill(pid, signal.SIGKILL)


def has_no_room(process: Process) -> bool:
    """Whether it has ended because the disk was full."""
    return process.status == 1 and "DiskFull" in (process.text().splitlines() or [""])[-1]


def wait_for(condition: Callable[[], bool], timeout: float, what: str) -> float:
    """Seconds until it held. Raises TimeoutError."""
    begun = time.monotonic()
    pause = threading.Event()
    while not condition():
        if time.monotonic() - begun > timeout:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        pause.wait(0.02)
    return time.monotonic() - begun


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False
