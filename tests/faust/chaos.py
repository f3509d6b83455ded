"""Strike Faust workers and their log at random while records come, then compare everything.

    python -m tests.faust.chaos [--minutes M] [--seed N] [--workers N] [--standbys N]
        [--kafka | --stock] [--guarantee G] [--store URL] [--careless] [--only BLOWS]
        [--keep FOLDER]

The app (sample_chaos.py) copies each record together with running figures of a table and of a
windowed table, and groups it again. The exit status is 1 if a record was lost or counted twice, or
if a table differs from its input. With `--careless` offsets are committed after the outputs: then
the same run fails. With `--stock` it runs on Faust's own transport and store, on Kafka.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.kafka_broker import cluster
from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.chaos_blows import FaustBlows
from tests.faust.chaos_field import FaustField
from tests.faust.chaos_oracle import Findings, compare, compare_views, expected_views
from tests.kafka.brokers import SETTINGS

FINISH_S = 180.0
"""Maximum seconds to wait at the end until all records are handled."""
CARELESS_S = 150.0
"""Maximum seconds of a careless run without a death in a commit, as on a busy machine."""
VIEWS_S = 60.0
"""Maximum seconds to wait at the end until the workers' views show all of it."""
STOCK_STORE = "rocksdb://?driver=rocksdict"
"""Faust's own store."""


def run(log: Log, url: str, folder: Path, options: argparse.Namespace) -> Findings:
    """Strike for the minutes that are asked for, wait until all is handled, and compare."""
    begun = time.monotonic()
    settings = {
        "FAUST_STANDBYS": str(options.standbys),
        "FAUST_GUARANTEE": options.guarantee,
        "FAUST_STORE": STOCK_STORE if options.stock else options.store,
        **({"FAUST_CARELESS": "1"} if options.careless else {}),
    }
    field = FaustField(
        log, url, folder, workers=options.workers, seed=options.seed, settings=settings
    )
    blows = FaustBlows(field, options.seed, options.only)
    wrong: list[str] = []
    try:
        blows.every_kind()
        while _goes_on(blows, time.monotonic() - begun, options) and not wrong:
            blows.strike()
            wrong = [] if options.stock else field.tend()
        wrong += field.finish(FINISH_S)
        found = compare(log, field.writer.acknowledged)
        if not options.stock:
            # Workers of stock Faust may restore their tables for minutes: no view answers then, and
            # they do not stop when they are asked to.
            expected = expected_views(log)
            shown = field.shown(expected, 0.0 if wrong or found.wrong else VIEWS_S)
            compare_views(found, shown, expected)
            wrong += field.close()
    except BaseException:
        for worker in field.slots:
            print(worker.text()[-6000:], file=sys.stderr)
        raise
    finally:
        field.kill_all()
    found.wrong += wrong
    report(found, blows, field, time.monotonic() - begun)
    return found


def _goes_on(blows: FaustBlows, seconds: float, options: argparse.Namespace) -> bool:
    """Return True in the time asked for, and until a careless worker has died in a commit."""
    shows_nothing = options.careless and not blows.killed_in_a_commit and seconds < CARELESS_S
    return bool(seconds < options.minutes * 60 or shows_nothing)


def report(found: Findings, blows: FaustBlows, field: FaustField, seconds: float) -> None:
    """Print what was done, and what was found."""
    said = "".join(path.read_text(errors="replace") for path in field.folder.glob("*.out"))
    print(
        f"{seconds:.0f} s: {found.records:,} records in, {found.outputs:,} out",
        "  ".join(f"{number} × {blow}" for blow, number in sorted(blows.count.items())),
        f"{blows.killed_in_a_commit} times killed in a commit",
        f"{said.count('Executing _on_partitions_assigned')} assignments, "
        f"{said.count('a commit was refused')} commits refused",
        f"{field.writer.repeats} transactions of the writer aborted and written again",
        f"lost {found.lost}, doubled {found.doubled}",
        *(f"WRONG {what}" for what in found.wrong),
        sep="\n",
        flush=True,
    )


def main() -> int:
    """Run the program. Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Blows at random for Faust workers, and a count.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--standbys", type=int, default=1)
    parser.add_argument("--kafka", action="store_true", help="on a broker of Kafka's")
    parser.add_argument("--stock", action="store_true", help="on Faust's own transport and store")
    parser.add_argument("--guarantee", default="exactly_once")
    parser.add_argument("--store", default="strandline://")
    parser.add_argument("--careless", action="store_true", help="commit offsets after outputs")
    parser.add_argument("--only", default="", help="blows whose names have one of these in them")
    parser.add_argument("--keep", type=Path, help="a new folder, for everything if it fails")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faust-chaos-")))
        if options.kafka or options.stock:
            [broker] = stack.enter_context(cluster(folder / "brokers", 1, SETTINGS))
            log = stack.enter_context(changelog.open(f"kafka://{broker.address}"))
            url = f"{'' if options.stock else 'strandline+'}kafka://{broker.address}"
        else:
            # This process only attaches, so that the owner is always another one.
            log = stack.enter_context(changelog.open(folder / "log", role="attach_or_spawn"))
            url = f"strandline://{folder / 'log'}"
        found = run(log, url, folder, options)
        if found.wrong and options.keep:
            without_sockets = shutil.ignore_patterns("*.sock")
            shutil.copytree(folder, options.keep, symlinks=True, ignore=without_sockets)
    return int(bool(found.wrong or found.lost or found.doubled))


if __name__ == "__main__":
    sys.exit(main())
