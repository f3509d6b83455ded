"""Workers, owner and disk are struck at random while producers write; then everything is counted.

    python -m tests.chaos.chaos [--minutes M] [--seed N] [--workers N] [--guarantee G]

One blow after another, as the seed says. The log is in a small file system of its own (tmpfs, for
which the program runs itself again in a mount namespace), so that its disk can be full. Ends
with 1 if a promise was broken; with `--guarantee at_least_once` the same run doubles records.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from changelog.embedded.checking.findings import Severity
from changelog.embedded.checking.folder import check_log
from changelog.records import TopicPartition
from changelog.storage import LocalStorage
from statestore.checking import check_stores
from strandline import Store
from tests.chaos.field import Field, wait_for
from tests.workers.pipeline import Pipeline, pipeline

WITHIN = "STRANDLINE_CHAOS_FOLDER"
"""The folder that is a file system of its own."""
OUTSIDE = "STRANDLINE_CHAOS_OUTSIDE"
"""One that is not: what workers say goes there, also when the disk is full."""
NO_SMALL_DISK = "without a small file system"
PAUSES = (0.2, 0.5, 1.0, 2.0)
FREEZE = (0.5, 1.5, 3.5)
"""Seconds; the session is 2 s long."""
FULL_SECONDS = 2.5


@dataclass
class Report:
    """What happened."""

    seed: int
    seconds: float = 0.0
    blows: Counter[str] = field(default_factory=Counter)
    takeovers: list[float] = field(default_factory=list)
    """Seconds from the owner's death to the next answer."""
    records: int = 0
    outputs: int = 0
    deleted: int = 0
    fences: int = 0
    rebalances: int = 0
    restores: list[float] = field(default_factory=list)
    replayed: int = 0
    passes: int = 0
    removed: int = 0
    """Records, by cleaning; tombstones are among them."""
    tombstones: int = 0
    killed_in_a_pass: int = 0
    killed_in_a_commit: int = 0
    made_anew: int = 0
    """Stores, since deletions had been removed from their changelogs."""
    pens_repeated: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        takeovers, restores = sorted(self.takeovers), sorted(self.restores)
        return [
            f"seed {self.seed}, {self.seconds:.0f} s: {self.records:,} records in, {self.outputs:,} out",
            f"{self.deleted:,} records deleted while producers ran",
            "  ".join(f"{number} × {blow}" for blow, number in sorted(self.blows.items())),
            f"{self.fences} fences, {self.rebalances} rebalances",
            f"{self.killed_in_a_commit} times killed in a commit",
            f"{self.pens_repeated} transactions of producers aborted and written again",
            f"{len(takeovers)} takeovers: {_spread(takeovers)}",
            f"{len(restores)} restores, {self.replayed:,} records replayed: {_spread(restores)}",
            f"{self.passes} passes of the cleaner, {self.killed_in_a_pass} times killed in a pass",
            f"{self.removed:,} records removed, {self.tombstones:,} tombstones removed",
            f"{self.made_anew} stores rebuilt for purged tombstones",
            f"lost {self.lost}, doubled {self.doubled}",
            *(f"WRONG {what}" for what in self.wrong),
        ]


class Chaos:
    """Blows, one after another."""

    def __init__(self, on: Field, report: Report, seed: int, only: str, *, full_disk: bool) -> None:
        self.field = on
        self.report = report
        self.chance = random.Random(seed)
        self._blows: list[tuple[int, Callable[[], None]]] = [
            (5, self.kill_worker),
            (2, self.kill_owner),
            (2, self.kill_in_a_pass),
            (2, self.kill_in_a_commit),
            (1, self.take_away),
            (4, self.freeze_worker),
            (1, self.freeze_owner),
            (3, self.restart_worker),
            (2, self.come_or_go),
            (1, self.fill_disk),
            (3, self.delete_what_was_read),
        ]
        unwanted = set() if full_disk else {self.fill_disk}
        self._blows = [
            (weight, blow)
            for weight, blow in self._blows
            if only in blow.__name__ and blow not in unwanted
        ]

    def strike(self) -> None:
        """The next blow, and what has gone is there again."""
        weights = [weight for weight, _ in self._blows]
        [(_, blow)] = self.chance.choices(self._blows, weights)
        blow()
        self.report.blows[blow.__name__.replace("_", " ")] += 1
        pause(self.chance.choice(PAUSES))

    def every_kind(self) -> None:
        for _, blow in self._blows:
            blow()
            self.report.blows[blow.__name__.replace("_", " ")] += 1

    def kill_worker(self) -> None:
        slot = self.chance.choice(self.field.running())
        self.field.process(slot).kill()
        pause(self.chance.choice(PAUSES))
        self.field.start(slot)

    def kill_in_a_commit(self) -> None:
        """When outputs are written, and the offsets of what they came from are not committed yet."""
        slot = self.chance.choice(self.field.running())
        process = self.field.process(slot)
        with contextlib.suppress(TimeoutError):  # how many it was is counted
            wait_for(lambda: process.has_stores or not process.is_running, 20, "a worker's stores")
            process.doom()
            wait_for(lambda: not process.is_running, 5, "its next commit")
            self.report.killed_in_a_commit += 1
        process.kill()
        self.field.start(slot)

    def take_away(self) -> None:
        """A worker, with its disk, for longer than deletions stay in the changelogs."""
        apart = [slot for slot in self.field.running() if slot % 2]
        if not apart:
            return
        slot = self.chance.choice(apart)
        process = self.field.process(slot)
        wait_for(lambda: process.has_stores or not process.is_running, 60, "a worker's stores")
        pause(max(PAUSES))
        process.kill()
        since = self.field.changelogs()
        with contextlib.suppress(TimeoutError):  # how many stores it was for is counted
            wait_for(lambda: self.field.is_purged(since), 20, "deletions to be removed")
        self.field.start(slot)

    def kill_owner(self) -> None:
        """Whoever it is: a worker, or a process that has nothing else to do."""
        self._kill_owner(tries=1)

    def kill_in_a_pass(self) -> None:
        """The owner, when the cleaner has done a part of what it is at."""
        self._kill_owner(tries=300)

    def _kill_owner(self, tries: int) -> None:
        pid = self.field.owner()
        if pid is None:
            return
        self.report.killed_in_a_pass += self.field.sweeps.catch(pid, tries)
        os.kill(pid, signal.SIGKILL)
        gone = time.monotonic()
        wait_for(lambda: self.field.owner() not in (None, pid), 30, "another owner")
        self.field.ends()
        self.report.takeovers.append(time.monotonic() - gone)
        for slot, process in enumerate(self.field.slots):
            if process is not None and process.pid == pid:
                process.kill()
                self.field.start(slot)

    def freeze_worker(self) -> None:
        slot = self.chance.choice(self.field.running())
        self.field.process(slot).freeze()
        pause(self.chance.choice(FREEZE))
        self.field.process(slot).thaw()

    def freeze_owner(self) -> None:
        pid = self.field.owner()
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            pause(self.chance.choice(FREEZE))
            os.kill(pid, signal.SIGCONT)

    def restart_worker(self) -> None:
        slot = self.chance.choice(self.field.running())
        self.report.wrong += self.field.end(slot)
        self.field.start(slot)

    def come_or_go(self) -> None:
        """One worker more for a while, or one fewer."""
        if len(self.field.slots) > 2 and self.chance.random() < 0.5:
            slot = self.chance.choice(self.field.running())
            self.report.wrong += self.field.end(slot)
            pause(2 * self.chance.choice(PAUSES))
            self.field.start(slot)
        else:
            self.field.slots.append(None)
            self.field.start(len(self.field.slots) - 1)
            pause(2 * self.chance.choice(PAUSES))
            self.report.wrong += self.field.end(-1)
            del self.field.slots[-1]

    def fill_disk(self) -> None:
        self.field.fill_disk()
        pause(FULL_SECONDS)
        self.field.free_disk()

    def delete_what_was_read(self) -> None:
        self.report.deleted += self.field.delete_read()


def run(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    workers: int,
    guarantee: str,
    careless: bool,
    only: str,
    full_disk: bool,
) -> Report:
    """So many seconds of it, and the count."""
    report, begun = Report(seed), time.monotonic()
    said = Path(tempfile.mkdtemp(prefix="said-", dir=os.environ.get(OUTSIDE)))
    on = Field(
        folder,
        said,
        workers=workers,
        seed=seed,
        guarantee=guarantee,
        careless=careless,
        bound=seconds + 600,
    )
    try:
        chaos = Chaos(on, report, seed, only, full_disk=full_disk)
        wait_for(lambda: on.scribe.records > 1_000, 60, "the first records")
        chaos.every_kind()
        while time.monotonic() - begun < seconds:
            report.wrong += on.tend()
            if report.wrong:
                break
            chaos.strike()
        on.settle(180)
        report.wrong += on.left_open()
        committed = on.committed()
        report.wrong += on.close()
    except BaseException:
        on.kill_all()
        print(on.text()[-20_000:], file=sys.stderr)
        raise
    report.seconds = time.monotonic() - begun
    count(on, report)
    report.wrong += at_rest(on, committed)
    return report


def count(on: Field, report: Report) -> None:
    """Hold what came out against what went in."""
    scribe, said = on.scribe, on.text()
    acknowledged = Counter(value for pen in on.pens for value in pen.acknowledged)
    more, fewer = scribe.values - acknowledged, acknowledged - scribe.values
    if more or fewer:
        report.wrong.append(
            f"input: {more.total()} too many, {fewer.total()} acknowledged and lost"
        )
    stages = scribe.stages.values()
    report.records = scribe.records
    report.outputs = sum(figures.n for stage in stages for figures in stage.last.values())
    report.lost = sum(stage.lost for stage in stages)
    report.doubled = sum(stage.doubled for stage in stages)
    report.wrong += scribe.wrong + [what for stage in stages for what in stage.wrong()][:10]
    report.pens_repeated = sum(pen.repeats for pen in on.pens)
    report.fences = said.count("this worker was fenced")
    report.rebalances = said.count("takes up") + said.count("gives up")
    for records, took in re.findall(r"partitions back: (\d+) records replayed in ([\d.]+) s", said):
        report.replayed += int(records)
        report.restores.append(float(took))
    report.made_anew = len(re.findall(r"is made anew: .* deletions from there", said))
    sweeps = on.sweeps
    report.passes, report.removed = sweeps.passes, sweeps.removed
    report.tombstones = sweeps.tombstones


def at_rest(on: Field, committed: Mapping[TopicPartition, int]) -> list[str]:
    """What is wrong with the files that are left: the log, the stores, their content, the offsets."""
    wait_for(lambda: on.owner() is None, 60, "the last owner to leave")
    checked = check_log(LocalStorage(on.log))
    for machine in on.machines():
        check_stores(machine, checked)
    findings = checked.report.findings
    found = [f"{f.file}: {f.what}" for f in findings if f.severity > Severity.NOTE]
    for machine in on.machines():
        found += differences(on, machine / "state", committed)
    return found


def differences(on: Field, state: Path, committed: Mapping[TopicPartition, int]) -> list[str]:
    """How stores, brought up to the end of their changelogs, and offsets differ from what they should be."""
    made = pipeline(str(on.log), recent=True, state_dir=state)
    assert made.recent is not None
    with made.app:
        stages = on.scribe.stages
        found = compare(made, made.per_word, stages["figures"].given)
        found += compare(made, made.per_letter, stages["letters"].given)
        found += compare(made, made.recent, on.scribe.recent)
        after = made.app.broker.committed("pipeline", require_stable=True)
        if {tp: offset.offset for tp, offset in after.items()} != committed:
            found.append(f"committed were {committed}, and are {after}")
    return found


def compare(made: Pipeline, store: Store[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """How a store differs from what should be in it."""
    held: dict[str, Any] = made.app.query(store).to_dict()
    off = sorted(key for key in wanted if held.get(key) != wanted[key])
    back = sorted(held.keys() - wanted.keys())
    found = []
    if off:
        found.append(f"store {store.name}: {len(off)} keys are off, as {off[:3]}")
    if back:
        found.append(
            f"store {store.name}: {len(back)} keys are there that were deleted, as {back[:3]}"
        )
    return found


def within_small_disk(arguments: list[str], size: str) -> int:
    """Run again where a folder is a file system of its own; without it, where that is not allowed."""
    again = [sys.executable, "-m", "tests.chaos.chaos", *arguments]
    prefix = "strandline-chaos-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix) as folder,
        tempfile.TemporaryDirectory(prefix=prefix) as outside,
    ):
        namespace = mount_namespace()
        if namespace is None:
            print(f"{NO_SMALL_DISK}: mounting takes root, or user namespaces; no disk gets full")
            command = [*again, "--no-full-disk"]
        else:
            mount = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
            command = [*namespace, "sh", "-c", mount, folder, *again]
        environment = {**os.environ, WITHIN: folder, OUTSIDE: outside}
        return subprocess.run(command, env=environment, check=False).returncode


def mount_namespace() -> list[str] | None:
    """How a program is run that may mount; None if it cannot be."""
    for options in (["--mount"], ["--mount", "--map-root-user"]):
        command = ["unshare", *options]
        with contextlib.suppress(OSError):
            tried = subprocess.run([*command, "true"], capture_output=True, check=False)
            if tried.returncode == 0:
                return command
    return None


def pause(seconds: float) -> None:
    """What is between two blows is not waited for: it is the length of a blow."""
    threading.Event().wait(seconds)


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    at = [seconds[0], seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)], seconds[-1]]
    return "least, median, p95, most: " + ", ".join(f"{value * 1000:,.0f} ms" for value in at)


def main() -> int:
    """Run it; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Blows at random, and a count.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--guarantee", default="exactly_once")
    parser.add_argument("--careless", action="store_true", help="workers overlook deletions")
    parser.add_argument("--only", default="", help="blows whose names have this in them, as kill")
    parser.add_argument("--no-full-disk", action="store_true")
    parser.add_argument("--size", default="6g", help="of the small file system")
    options = parser.parse_args()
    if WITHIN not in os.environ:
        return within_small_disk([*sys.argv[1:], "--seed", str(options.seed)], options.size)
    folder = Path(os.environ[WITHIN])
    print(f"seed {options.seed}", flush=True)
    report = run(
        folder,
        seconds=options.minutes * 60,
        seed=options.seed,
        workers=options.workers,
        guarantee=options.guarantee,
        careless=options.careless,
        only=options.only,
        full_disk=not options.no_full_disk,
    )
    print(*report.lines(), sep="\n")
    shutil.rmtree(folder / "log", ignore_errors=True)
    return int(bool(report.wrong or report.lost or report.doubled))


if __name__ == "__main__":
    sys.exit(main())
