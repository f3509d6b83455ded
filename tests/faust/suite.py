"""Faust's own tests, from its source distribution, on this transport and store.

    python -m tests.faust.suite [--only unit,functional,integration,stress] [--seconds S]

The tests with pytest run twice: as Faust runs them, and with Strandline's URLs as the defaults of
all apps that name no broker or store. A test that passes the first time and fails the second time
is reported, unless EXPECTED has the reason. The stress apps look for records that were doubled or
left out, while their workers are killed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.faust_workers import rows
from tests.workers.processes import Process, ending

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "faust-suite"
PARTS = ("functional", "integration", "unit")
STRESS = ("forwarder", "tables")
"""Stress apps that check their input. The third one, `simple`, only counts it."""
FAULT = re.compile(r".*(?:Found duplicate number|Sequence gap).*")
WORKERS = 3
PAUSE_S = 5.0
"""Seconds between two kills of a stress worker."""
EXPECTED = {
    r"test_app\.Test_settings::|TestAppConfiguration::test_config_From": "asserts Faust's URLs",
    r"drivers\.test_aiokafka\.": "asks the app's transport for attributes of the Kafka driver",
    r"web\.test_tables::test_table_key": "reads the dict of Faust's store in memory",
    r"unit\.tables\.test_(table|wrappers)\.": "writes to a table under a mock in place of a record",
    r"test_cron::test_secs_for_next": "freezegun looks into all modules, also into optional ones",
}
"""Patterns of tests that fail with other default URLs, each with the reason."""


def source() -> Path:
    """Return the folder of Faust's source distribution, which is downloaded once."""
    release = version("faust-streaming")
    folder = CACHE / f"faust_streaming-{release}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        options = ["--no-binary", "faust-streaming", "--dest", str(CACHE)]
        subprocess.run([*download, *options, f"faust-streaming=={release}"], check=True)
        with tarfile.open(CACHE / f"{folder.name}.tar.gz") as packed:
            packed.extractall(CACHE, filter="data")
        (folder / "faust").rename(folder / "source")  # the installed one is tested
    return folder


def outcomes(folder: Path, part: str, where: Path, urls: dict[str, str]) -> dict[str, bool]:
    """Run one part of Faust's tests; return True for each test that passed, False if it failed."""
    run = f"{part}-{'strandline' if urls else 'plain'}"
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--junitxml={where / run}.xml"]
    with (where / f"{run}.out").open("wb") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"tests/{part}"],
            cwd=folder,
            env={**os.environ, **urls, "PYTHONPATH": str(folder)},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    found = {}
    for case in ET.parse(where / f"{run}.xml").iter("testcase"):
        if case.find("skipped") is None:
            failed = case.find("failure") is not None or case.find("error") is not None
            # Some parameters are the current time.
            name = re.sub(r"\d{9,}[\d.]*|\d+-\d+-\d+T[\d:.]+", "now", str(case.get("name")))
            found[f"{case.get('classname')}::{name}"] = not failed
    return found


def compare(folder: Path, part: str, where: Path) -> list[str]:
    """Run one part twice; return the tests that fail only with our URLs, without a reason."""
    urls = {"BROKER_URL": f"strandline://{where / 'log'}", "APP_STORE": "strandline://"}
    plain, ours = outcomes(folder, part, where, {}), outcomes(folder, part, where, urls)
    worse = sorted(test for test, passed in ours.items() if not passed and plain.get(test, True))
    left_out = sorted(test for test in plain.keys() - ours.keys() if plain[test])
    reasons = {
        test: next((why for pattern, why in EXPECTED.items() if re.search(pattern, test)), "")
        for test in worse
    }
    print(
        f"{part}: {sum(ours.values())} of {len(ours)} pass; {sum(plain.values())} of {len(plain)} "
        f"with Faust's URLs; {len(worse)} only there",
        *(f"  {test}: {why or 'NOT EXPECTED'}" for test, why in reasons.items()),
        sep="\n",
        flush=True,
    )
    return left_out + [test for test, why in reasons.items() if not why]


def stand_ins(folder: Path, where: Path) -> Path:
    """Return a folder with modules that the stress apps need to be imported.

    They name their package `t`, as Faust's tests were once called. The package raven-aiohttp, which
    they never use without Sentry, cannot be imported on Python 3.11 and later.
    """
    found = where / "stand-ins"
    if not found.is_dir():
        found.mkdir()
        (found / "raven_aiohttp.py").write_text("class AioHttpTransport:\n    pass\n")
        (found / "t").symlink_to(folder / "tests", target_is_directory=True)
    return found


def stress(folder: Path, app: str, where: Path, seconds: float) -> list[str]:
    """Kill workers of a stress app for a while; return the faults that they have logged."""
    log = where / f"log-{app}"
    chance, starts = random.Random(app), 0

    def start(slot: int) -> Process:
        nonlocal starts
        starts += 1
        return Process(
            ["faust", "-A", f"t.stress.tests.{app}", "worker", "-l", "info", "--without-web"],
            where / f"{app}-{starts}.out",
            folder=folder,
            bound=seconds + 120,
            environment={
                "PYTHONPATH": str(stand_ins(folder, where)),
                "STRESS_BROKER": f"strandline://{log}",
                "STRESS_STORE": "strandline://",
                "FAUST_DATADIR": str(where / f"{app}-{slot}"),
                "NO_COLOR": "1",
            },
        )

    with changelog.open(log, role="attach_or_spawn") as attached:
        workers = [start(slot) for slot in range(WORKERS)]
        with ending(workers):
            for _ in range(int(seconds / PAUSE_S)):
                threading.Event().wait(PAUSE_S)
                victim = chance.randrange(WORKERS)
                workers[victim].kill()
                workers[victim] = start(victim)
            threading.Event().wait(PAUSE_S)
        handled, faults = numbers(attached)
    said = "".join(path.read_text(errors="replace") for path in where.glob(f"{app}-*.out"))
    logged = FAULT.findall(said)
    print(
        f"stress {app}: {handled:,} records, {starts} starts, {len(faults)} numbers doubled or "
        f"left out, {len(logged)} reported by the app",
        flush=True,
    )
    if not handled:
        return [f"stress {app}: no records were handled: {said[-3000:]}"]
    return faults + (logged if app == "tables" else [])


def numbers(log: Log) -> tuple[int, list[str]]:
    """Return how many numbers the agents' topics have, and those that are out of order.

    A leader counts from 0 in each partition. The app `forwarder` keeps the last number of each
    partition in memory, and complains if the partition was another worker's meanwhile.
    """
    handled, faults = 0, []
    for info in log.topics():
        if not info.name.endswith(("app.process", "app.check")):
            continue
        last: dict[int, int] = {}
        for partition, _, _, number in rows(log, info.name):
            handled += 1
            if number not in (0, last.get(partition, -1) + 1):
                faults.append(f"{info.name}-{partition}: {number} after {last.get(partition)}")
            last[partition] = number
    return handled, faults


def main() -> int:
    """Run the program. Return 1 if something fails that should not."""
    parser = argparse.ArgumentParser(description="Faust's own tests on this transport.")
    parser.add_argument("--only", default=",".join((*PARTS, "stress")))
    parser.add_argument("--seconds", type=float, default=60.0, help="of each stress app")
    parser.add_argument("--keep", type=Path, help="a folder for the output of all tests")
    options = parser.parse_args()
    wanted = options.only.split(",")
    folder = source()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="faust-suite-") as name:
        where = options.keep or Path(name)
        where.mkdir(exist_ok=True)
        for part in PARTS:
            if part in wanted:
                wrong += compare(folder, part, where)
        for app in STRESS if "stress" in wanted else ():
            wrong += stress(folder, app, where, options.seconds)
    print(*(f"WRONG {what}" for what in wrong), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
