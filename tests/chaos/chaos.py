"""Strike workers and their log at random while producers write, then count everything.

    python -m tests.chaos.chaos [--minutes M] [--seed N] [--workers N] [--guarantee G] [--kafka]
        [--keep FOLDER]

One blow follows another, drawn from the seed. The log is in a small file system of its own, so that
its disk can be full: tmpfs, for which the program runs itself again in a mount namespace. With
`--kafka` the log is a cluster of three brokers, which are struck in turn. The exit status is 1 if a
promise was broken. With `--guarantee at_least_once` the same run doubles records.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.kafka_broker import cluster
from strandline import Store
from strandline.changelog.records import TopicPartition
from tests.chaos.blows import Blows
from tests.chaos.field import Field, wait_for
from tests.chaos.report import Report
from tests.kafka.brokers import SETTINGS, SOON_NOTICED
from tests.workers.pipeline import Pipeline, pipeline

WITHIN = "STRANDLINE_CHAOS_FOLDER"
"""Environment variable with the folder that is a file system of its own."""
OUTSIDE = "STRANDLINE_CHAOS_OUTSIDE"
"""Environment variable with a folder on the large disk, for the workers' logs."""
NO_SMALL_DISK = "without a small file system"
PREFIX = "strandline-chaos-"


def run(on: Field, blows: Blows, *, seconds: float, begun: float) -> Report:
    """Strike for `seconds` since `begun`, wait until all input is handled, and count."""
    report = blows.report
    try:
        wait_for(lambda: on.scribe.records > 1_000, 60, "the first records")
        blows.every_kind()
        while time.monotonic() - begun < seconds:
            report.wrong += on.tend()
            if report.wrong:
                break
            blows.strike()
        on.finish(180)
        report.wrong += on.left_open()
        report.wrong += off_at_work(on)
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
    """Compare outputs with inputs."""
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
    report.windows, report.late = scribe.windows.count, scribe.windows.late
    report.wrong += scribe.windows.wrong()
    report.lost = sum(stage.lost for stage in stages)
    report.doubled = sum(stage.doubled for stage in stages)
    report.wrong += scribe.wrong + [what for stage in stages for what in stage.wrong()][:10]
    report.pens_repeated = sum(pen.repeats for pen in on.pens)
    report.fences = said.count("this worker was fenced")
    report.rebalances = said.count("takes up") + said.count("gives up")
    for records, took in re.findall(r"partitions back: (\d+) records replayed in ([\d.]+) s", said):
        report.replayed += int(records)
        report.restores.append(float(took))
    on.count(report)
    report.made_anew = len(re.findall(r"is rebuilt: .* deletions from there", said))


def off_at_work(on: Field) -> list[str]:
    """Return the differences of the stores of running workers from the expected ones."""
    stages = on.scribe.stages
    found = compare(on.made, on.made.per_word, stages["figures"].given)
    found += compare(on.made, on.made.per_letter, stages["letters"].given)
    assert on.made.recent is not None
    found += compare(on.made, on.made.recent, on.scribe.recent)
    return [f"in running workers: {what}" for what in found]


def at_rest(on: Field, committed: Mapping[TopicPartition, int]) -> list[str]:
    """Return what is wrong with the log, the stores and the offsets after the run."""
    found = on.check()
    for machine in on.machines():
        found += differences(on, machine / "state", committed)
    return found


def differences(on: Field, state: Path, committed: Mapping[TopicPartition, int]) -> list[str]:
    """Return the differences of stores, restored to the end, and offsets from the expected ones."""
    made = pipeline(on.address, recent=True, windows=True, typed=on.typed, state_dir=state)
    assert made.recent is not None
    with made.app:
        stages = on.scribe.stages
        found = compare(made, made.per_word, stages["figures"].given)
        found += compare(made, made.per_letter, stages["letters"].given)
        found += compare(made, made.recent, on.scribe.recent)
        after = made.app.broker().committed("pipeline", require_stable=True)
        if {tp: offset.offset for tp, offset in after.items()} != committed:
            found.append(f"committed were {committed}, and are {after}")
    return found


def compare(made: Pipeline, store: Store[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences of a store from its expected content."""
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
    """Run again with a folder in a small file system, or without one if mounting is not allowed."""
    again = [sys.executable, "-m", "tests.chaos.chaos", *arguments]
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as folder,
        tempfile.TemporaryDirectory(prefix=PREFIX) as outside,
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
    """Return a command prefix that allows mounting; None if there is none."""
    for options in (["--mount"], ["--mount", "--map-root-user"]):
        command = ["unshare", *options]
        with contextlib.suppress(OSError):
            tried = subprocess.run([*command, "true"], capture_output=True, check=False)
            if tried.returncode == 0:
                return command
    return None


def main() -> int:
    """Run the program. Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Blows at random, and a count.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--guarantee", default="exactly_once")
    parser.add_argument("--kafka", action="store_true", help="on three brokers of Kafka's")
    parser.add_argument("--careless", action="store_true", help="workers overlook deletions")
    parser.add_argument(
        "--only", default="", help="blows whose names have one of these in them, as kill,full"
    )
    parser.add_argument("--said", help="an empty folder, to keep what workers say")
    parser.add_argument("--keep", help="a new folder, for log and stores if a promise was broken")
    parser.add_argument("--no-full-disk", action="store_true")
    parser.add_argument("--size", default="6g", help="of the small file system")
    options = parser.parse_args()
    if not options.kafka and WITHIN not in os.environ:
        return within_small_disk([*sys.argv[1:], "--seed", str(options.seed)], options.size)
    print(f"seed {options.seed}", flush=True)
    report = on_kafka(options) if options.kafka else in_folder(options)
    print(*report.lines(), sep="\n")
    return int(bool(report.wrong or report.lost or report.doubled))


def in_folder(options: argparse.Namespace) -> Report:
    """Run on a log in the small file system."""
    from tests.chaos.folder import FolderBlows, FolderField

    begun = time.monotonic()
    folder = Path(os.environ[WITHIN])
    said = Path(options.said or os.environ[OUTSIDE])
    on = FolderField(folder, said, **field_options(options))
    blows = FolderBlows(
        on, Report(options.seed), options.seed, options.only, full_disk=not options.no_full_disk
    )
    try:
        report = run(on, blows, seconds=options.minutes * 60, begun=begun)
        if options.keep and report.wrong:
            keep(folder, Path(options.keep))
        return report
    finally:
        shutil.rmtree(folder / "log", ignore_errors=True)


def keep(folder: Path, kept: Path) -> None:
    """Copy the log and the stores of all machines, which are lost with the small file system."""
    without_sockets = shutil.ignore_patterns("*.sock", "ballast")
    shutil.copytree(folder, kept, symlinks=True, ignore=without_sockets)


def on_kafka(options: argparse.Namespace) -> Report:
    """Run on three brokers of its own."""
    from tests.chaos.kafka import KafkaBlows, KafkaField

    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        said = Path(options.said or folder / "said")
        said.mkdir(exist_ok=True)
        with cluster(folder / "brokers", 3, {**SETTINGS, **SOON_NOTICED}) as brokers:
            begun = time.monotonic()
            on = KafkaField(brokers, folder, said, **field_options(options))
            blows = KafkaBlows(on, Report(options.seed), options.seed, options.only)
            return run(on, blows, seconds=options.minutes * 60, begun=begun)


def field_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options common to every field."""
    return {
        "workers": options.workers,
        "seed": options.seed,
        "guarantee": options.guarantee,
        "careless": options.careless,
        "bound": options.minutes * 60 + 600,
    }


if __name__ == "__main__":
    sys.exit(main())
