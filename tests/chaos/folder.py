"""The field on a log in a folder: in a small file system, with an owner and a cleaner.

This process only attaches, so that the owner is always another one that can be killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from strandline import changelog
from strandline.changelog.embedded.checking.findings import Finding, Severity
from strandline.changelog.embedded.checking.folder import CheckedLog, check_log
from strandline.changelog.errors import StrandlineError
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import TopicPartition
from strandline.statestore.checking.stores import check_stores
from strandline.statestore.engines.inspection import inspected
from strandline.statestore.engines.rocksdb import DATABASE
from tests.chaos.blows import FREEZE, PAUSES, Blows, pause
from tests.chaos.field import INPUTS, OUTPUTS, Field, wait_for
from tests.chaos.report import Report
from tests.chaos.sweeps import Sweeps
from tests.workers.pipeline import PARTITIONS
from tests.workers.processes import Process

FULL_SECONDS = 2.5


class FolderField(Field):
    """The field on a log created in `folder`."""

    def __init__(self, folder: Path, said: Path, **options: Any) -> None:
        self.log = folder / "log"
        self.ballast = folder / "ballast"
        attached = changelog.open(self.log, role="attach_or_spawn")
        super().__init__(attached, str(self.log), said, typed=True, **options)

    def prepare(self) -> None:
        for topic in (*INPUTS, *OUTPUTS):
            self.attached.alter_topic(topic, config={"segment.bytes": str(1 << 20)})
        self.sweeps = Sweeps(self.made.app.broker(), self.log)

    def machine(self, slot: int) -> Path:
        """Return a folder: odd slots have a disk of their own, even ones share one."""
        return self.log.with_name(f"machine-{slot}") if slot % 2 else self.log

    def machines(self) -> list[Path]:
        return [self.log, *sorted(self.log.parent.glob("machine-*"))]

    def is_excused(self, process: Process) -> bool:
        """Return True if the worker ended because the disk was full."""
        return process.status == 1 and "DiskFull" in (process.text().splitlines() or [""])[-1]

    def repair(self) -> None:
        self.free_disk()

    def come_to_rest(self) -> None:
        wait_for(self.is_cleaned, 60, "the cleaner to get over what had failed")
        self.sweeps.stop()

    def count(self, report: Report) -> None:
        report.passes, report.removed = self.sweeps.passes, self.sweeps.removed
        report.tombstones = self.sweeps.tombstones

    def check(self) -> list[str]:
        """Check the log and the stores."""
        wait_for(lambda: self.owner() is None, 60, "the last owner to leave")
        checked = check_log(LocalStorage(self.log))
        for machine in self.machines():
            check_stores(machine, checked)
        findings = checked.report.findings
        return [
            f"{f.file}: {f.what}{self._circumstances(f, checked)}"
            for f in findings
            if f.severity > Severity.NOTE
        ]

    def _circumstances(self, finding: Finding, checked: CheckedLog) -> str:
        """Return the position of each machine's copy of a wrong store, and its changelog's ends."""
        scanned = checked.named(*finding.partition) if finding.partition else None
        if scanned is None or finding.kind != "store":
            return ""
        found, manifest = [], scanned.manifest
        for machine in self.machines():
            if (machine / finding.file / DATABASE).is_dir():
                with inspected(machine / finding.file) as content:
                    found.append(f"{machine.name}: {content.position()}")
        return (
            f" ({'; '.join(found)}; changelog from {manifest.log_start} to {scanned.end}, stable to "
            f"{scanned.last_stable_offset}, clean to {manifest.clean_end}, superseding to "
            f"{manifest.superseding_end}, purged to {manifest.purged_end})"
        )

    # The owner, the cleaner, the disk -------------------------------------------------

    def owner(self) -> int | None:
        """Return the process id of the log's owner; None if it is dead or this process."""
        with contextlib.suppress(OSError):
            found = re.match(r"pid (\d+)", (self.log / "lock").read_text())
            if found and int(found[1]) != os.getpid() and _is_alive(int(found[1])):
                return int(found[1])
        return None

    def changelogs(self) -> dict[TopicPartition, int]:
        """Return the end of each changelog from which keys are deleted."""
        recent = [TopicPartition("pipeline-recent-changelog", n) for n in range(PARTITIONS)]
        return {tp: e.high_watermark for tp, e in self.made.app.broker().offsets(recent).items()}

    def is_purged(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return True if tombstones up to these ends have been removed."""
        with contextlib.suppress(StrandlineError):
            now = self.made.app.broker().offsets(list(ends))
            return all(now[tp].purged_end >= end for tp, end in ends.items())
        return False

    def is_cleaned(self) -> bool:
        """Return True if no partition's last pass has failed."""
        with contextlib.suppress(StrandlineError):
            return not self.sweeps.failing()
        return False

    def fill_disk(self) -> None:
        free = shutil.disk_usage(self.ballast.parent).free
        with contextlib.suppress(OSError), self.ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, free)
        with contextlib.suppress(OSError), self.ballast.open("ab") as file:
            while True:  # the rest after rounding
                file.write(b"\0" * 4096)
                file.flush()

    def free_disk(self) -> None:
        self.ballast.unlink(missing_ok=True)

    def kill_all(self) -> None:
        super().kill_all()
        with contextlib.suppress(OSError):
            if (pid := self.owner()) is not None:
                os.kill(pid, signal.SIGKILL)


class FolderBlows(Blows):
    """Blows for a log in a folder: its owner, its cleaner, its disk."""

    def __init__(
        self, on: FolderField, report: Report, seed: int, only: str, *, full_disk: bool
    ) -> None:
        self.folder = on
        self._full_disk = full_disk
        super().__init__(on, report, seed, only)

    def kinds(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *super().kinds(),
            (2, self.kill_owner),
            (2, self.kill_in_a_pass),
            (1, self.take_away),
            (1, self.freeze_owner),
            *([(1, self.fill_disk)] if self._full_disk else []),
        ]

    def take_away(self) -> None:
        """Take a worker with its disk away for longer than tombstones stay in the changelogs."""
        apart = [slot for slot in self.field.running() if slot % 2]
        if not apart:
            return
        slot = self.chance.choice(apart)
        process = self.field.process(slot)
        wait_for(lambda: process.has_stores or not process.is_running, 60, "a worker's stores")
        pause(max(PAUSES))
        process.kill()
        since = self.folder.changelogs()
        with contextlib.suppress(TimeoutError):  # the report counts for how many stores it worked
            wait_for(lambda: self.folder.is_purged(since), 20, "deletions to be removed")
        self.field.start(slot)

    def kill_owner(self) -> None:
        """Kill the owner: a worker, or a process that only owns the log."""
        self._kill_owner(tries=1)

    def kill_in_a_pass(self) -> None:
        """Kill the owner in the middle of a pass of the cleaner."""
        self._kill_owner(tries=300)

    def _kill_owner(self, tries: int) -> None:
        pid = self.folder.owner()
        if pid is None:
            return
        self.report.killed_in_a_pass += self.folder.sweeps.catch(pid, tries)
        os.kill(pid, signal.SIGKILL)
        gone = time.monotonic()
        wait_for(lambda: self.folder.owner() not in (None, pid), 30, "another owner")
        self.field.ends()
        self.report.takeovers.append(time.monotonic() - gone)
        for slot, process in enumerate(self.field.slots):
            if process is not None and process.pid == pid:
                process.kill()
                self.field.start(slot)

    def freeze_owner(self) -> None:
        pid = self.folder.owner()
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            pause(self.chance.choice(FREEZE))
            os.kill(pid, signal.SIGCONT)

    def fill_disk(self) -> None:
        self.folder.fill_disk()
        pause(FULL_SECONDS)
        self.folder.free_disk()


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False
