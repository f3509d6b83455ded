"""Open a store whose RocksDB was damaged, and print the verdict.

    python -m tests.damage.stores <every>

It runs in a process of its own, like the ward of logs, because damaged files may crash RocksDB's
C++ code.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from strandline.changelog.errors import CorruptLog, StrandlineError
from strandline.statestore import StoreSpec
from strandline.statestore.engines.rocksdb import SST_MIN_KEYS
from tests.damage.ward import Case, Verdict, go_round
from tests.damage.wounds import Wound, hurt, pairs, single
from tests.state.kit import Changelog

SPEC: StoreSpec[str, int] = StoreSpec("s", key=str, value=int)


class Shelf:
    """A store with flushed batches and an ingested file, its changelog, and a folder for damaged
    copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.log = Changelog()
        store = self.log.open(SPEC, folder / "made")
        for number in range(SST_MIN_KEYS + 10):
            store[f"k{number}"] = number
        self.log.commit(store)
        store.checkpoint()
        for number in range(20):
            store[f"k{number}"] = -number
            self.log.commit(store)
            if number % 7 == 6:
                store.checkpoint()
        self.expected = dict(store.all())
        store.close()
        made = folder / "made"
        paths = [path for path in made.rglob("*") if path.is_file()]
        self.files = {path.relative_to(made).as_posix(): path.read_bytes() for path in paths}

    def cases(self) -> Iterator[Case]:
        """Yield each file with every wound, and every two files that an opening reads."""
        yield from single(self.files)
        read = {
            path: data for path, data in self.files.items() if not path.endswith(("LOG", "LOCK"))
        }
        yield from pairs(read)
        for two in combinations(sorted(read), 2):
            yield tuple(Wound(path, "zero", len(read[path]) // 3) for path in two)

    def judge(self, case: Case) -> Verdict:
        """Open the store, and once more if it is refused, as the error recommends."""
        folder = self._folder / "wounded"
        shutil.rmtree(folder, ignore_errors=True)
        for path, content in hurt(self.files, case).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        try:
            return self._tried(folder) or Verdict("same")
        except CorruptLog as error:
            said = str(error)
            if str(folder) not in said or "start again" not in said:
                return Verdict("wrong", f"it names no file, or no way out: {said}")
        except Exception:
            return Verdict("wrong", traceback.format_exc(limit=-3))
        try:
            return self._tried(folder) or Verdict("refused", said, "whole")
        except StrandlineError as error:
            return Verdict("wrong", f"{said}; and when it was started again: {error}")

    def _tried(self, folder: Path) -> Verdict | None:
        """Open the store. Return a verdict if its answers are wrong."""
        store = self.log.open(SPEC, folder)
        try:
            found = {key: store[key] for key in self.expected if key in store}
            scanned = dict(store.all())
        finally:
            store.close()
        for answers in (found, scanned):
            if answers != self.expected:
                other = {
                    k
                    for k in answers.keys() | self.expected.keys()
                    if answers.get(k) != self.expected.get(k)
                }
                return Verdict(
                    "wrong", f"{len(other)} other answers, without a word: {sorted(other)[:9]}"
                )
        return None


def main(every: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder))
        go_round(shelf.cases(), int(every), shelf.judge)


if __name__ == "__main__":
    main(*sys.argv[1:])
