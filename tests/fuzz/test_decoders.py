"""Decoders return a value or raise an error of our tree for any input; they never crash.

STRANDLINE_FUZZ_SECONDS=600 sets the duration, a few seconds by default. STRANDLINE_FUZZ_SEED sets
another start. Inputs of fixed findings go to corpus/<target>/, and are tried first in each run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.changelog.errors import CorruptLog
from tests.fuzz.fuzzing import CORPUS, attempt, changed, seeds
from tests.fuzz.targets import Target, targets

SECONDS = float(os.environ.get("STRANDLINE_FUZZ_SECONDS", "8"))
SEED = os.environ.get("STRANDLINE_FUZZ_SEED", "1")
FUZZED = targets()
IN_A_MOMENT = sorted(name for name in FUZZED if not name.startswith("opening"))


def fuzzed(seconds: float, *names: str) -> tuple[dict[str, int], list[str]]:
    """Return the number of inputs tried per target, and the findings, with deaths of the
    interpreter."""
    command = [sys.executable, "-m", "tests.fuzz.fuzzing", str(seconds), SEED, *names]
    bound = 120 + 3 * seconds
    ran = subprocess.run(command, capture_output=True, text=True, timeout=bound, check=False)
    tried: dict[str, int] = {}
    findings, target, trying = [], "", ""
    for line in map(json.loads, ran.stdout.splitlines()):
        if "target" in line:
            target, trying = line["target"], line["trying"]
        elif line.get("found"):
            findings.append(f"{target}: {line['data']}\n{line['found']}")
        elif "count" in line:
            tried[target] = line["count"]
    if ran.returncode != 0:
        last = Path(trying).read_bytes().hex() if trying else ""
        findings.append(f"{target}: died with {ran.returncode} at {last}\n{ran.stderr[-2000:]}")
    return tried, findings


@pytest.mark.timeout(300 + 4 * SECONDS)
def test_decoders_survive_mutated_input(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    tried, findings = fuzzed(SECONDS)
    assert not findings, "\n\n".join(findings)
    assert tried.keys() == FUZZED.keys()
    assert all(count >= len(seeds(name, FUZZED[name])) for name, count in tried.items())


@pytest.mark.parametrize("name", sorted(FUZZED))
def test_decoders_accept_their_seeds(name: str) -> None:
    """Seeds pass the first checks, so that mutations of them get past those too."""
    for data in FUZZED[name].seeds:
        FUZZED[name].run(data)


@pytest.mark.parametrize("name", IN_A_MOMENT)
def test_decoders_survive_any_bytes(name: str) -> None:
    @settings(max_examples=40, suppress_health_check=list(HealthCheck), database=None)
    @given(st.binary(max_size=200))
    def look(data: bytes) -> None:
        assert attempt(FUZZED[name], data) is None

    look()


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    folders = {path.name for path in CORPUS.iterdir()}
    assert folders
    assert folders <= FUZZED.keys()


def test_an_unexpected_error_is_reported() -> None:
    """An error of Python's own is a finding, one of our tree is not."""

    def wrong(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError(data)
        raise CorruptLog("here: no")

    assert attempt(Target(wrong, []), b"\0") is None
    assert "KeyError" in (attempt(Target(wrong, []), b"\xff") or "")


@pytest.mark.parametrize(
    ("deed", "said"),
    [("os.abort()", "died with -6 at "), ("all(iter(lambda: 1, 0))", "TookTooLong")],
)
def test_deaths_and_endless_loops_are_reported(
    deed: str, said: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    source = (repository / "tests/fuzz/fuzzing.py").read_text()
    impatient = source.replace("BOUND_SECONDS = 30", "BOUND_SECONDS = 1")
    (tmp_path / "tests/fuzz/fuzzing.py").write_text(impatient)
    (tmp_path / "tests/fuzz/targets.py").write_text(
        "import os\nfrom typing import NamedTuple\n"
        "class Target(NamedTuple):\n    run: object\n    seeds: list\n"
        f"def targets():\n    return {{'bad': Target(lambda data: {deed}, [b'seed'])}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{repository}")
    _, findings = fuzzed(0.1)
    assert len(findings) == 1
    assert said in findings[0]
    assert b"seed".hex() in findings[0]


def test_changes_are_the_same_for_the_same_seed() -> None:
    made = [changed(b"some bytes", [b"other"], Random(7)) for _ in range(2)]
    assert made[0] == made[1] != b"some bytes"
