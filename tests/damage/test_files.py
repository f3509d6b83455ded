"""Damage to every file of a log, alone and in pairs: the same answers, or a helpful error.

    same       all questions are answered as before
    prefix     recovery cuts the end of a last segment, as after a kill; the rest is as before
               (the same if the note of an orderly close was deleted too)
    refused    CorruptLog, with the file and the remedy; `repair` then opens the log, shows only
               records that were there, and names the losses

STRANDLINE_DAMAGE_EVERY=1 tries all cases (20 minutes), instead of every 151st.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from strandline.changelog.embedded import frame
from tests.damage.material import make
from tests.damage.ward import judge
from tests.damage.wounds import Wound
from tests.forms import first_of

pytestmark = pytest.mark.damages

NO_NOTE = "delete clean "
"""Prefix of cases without the note of an orderly close, which count as killed."""
EVERY = int(os.environ.get("STRANDLINE_DAMAGE_EVERY", "151"))
BOUND_SECONDS = 4 * 3600 if EVERY < 20 else 300


class Said(msgspec.Struct):
    """A line printed by the ward."""

    case: str = ""
    outcome: str = ""
    why: str = ""
    repaired: str = ""
    end: bool = False


def verdicts(command: list[str], folder: Path) -> Iterator[tuple[str, Said]]:
    """Yield the verdict of each case. A death of the ward's interpreter is a verdict too."""
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, timeout=BOUND_SECONDS, check=False
    )
    lines = [msgspec.json.decode(line, type=Said) for line in ran.stdout.splitlines()]
    case = ""
    for said in lines:
        if said.case:
            case = said.case
        elif said.outcome:
            yield case, said
            case = ""
    if not lines or not lines[-1].end:
        why = f"exit status {ran.returncode}: {ran.stderr.decode()[-2000:]}"
        yield case, Said(outcome="died", why=why)


def ward(state: str, selection: str, every: int = EVERY) -> list[str]:
    return [sys.executable, "-m", "tests.damage.ward", state, selection, str(every)]


@pytest.mark.timeout(BOUND_SECONDS)
@pytest.mark.parametrize("selection", first_of(["pairs", "single", "frames"], 1))
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_damaged_files_give_the_same_answers_or_a_helpful_error(
    state: str, selection: str, repository: Path
) -> None:
    seen = list(verdicts(ward(state, selection), repository))
    failed = [(case, said.why) for case, said in seen if said.outcome in ("wrong", "died")]
    assert not failed, failed[:5]
    outcomes = Counter(said.outcome for _, said in seen)
    assert outcomes["refused"], "no damage was met: the cases are none"
    shorter = [case for case, said in seen if said.outcome == "prefix"]
    wrong = [case for case in shorter if state == "closed" and NO_NOTE not in case]
    assert not wrong, "after an orderly end nothing may lack"


@pytest.mark.long
@pytest.mark.timeout(BOUND_SECONDS)
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_swapped_files_give_the_same_answers_or_a_helpful_error(
    state: str, repository: Path
) -> None:
    every = 1 + EVERY // 20
    seen = list(verdicts(ward(state, "swaps", every), repository))
    failed = [(case, said.why) for case, said in seen if said.outcome in ("wrong", "died")]
    assert not failed, failed[:5]
    outcomes = Counter(said.outcome for _, said in seen)
    assert outcomes["refused"]
    assert outcomes["same"], "files beside a segment are created again"
    assert set(outcomes) == {"refused", "same"}


@pytest.mark.long
def test_a_tail_cut_at_any_byte_leaves_the_records_before_it(repository: Path) -> None:
    seen = list(verdicts(ward("killed", "last frames", every=1), repository))
    assert Counter(said.outcome for _, said in seen) == {"prefix": 192}, seen[:5]


@pytest.mark.long
@pytest.mark.timeout(BOUND_SECONDS)
def test_a_damaged_store_is_unchanged_or_asks_to_be_started_again(repository: Path) -> None:
    every = 1 + EVERY // 7
    command = [sys.executable, "-m", "tests.damage.stores", str(every)]
    seen = list(verdicts(command, repository))
    assert {said.outcome for _, said in seen} <= {"same", "refused"}, seen
    assert len(seen) > 20


def test_a_wrong_answer_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checksum of payloads a changed byte of a value is a silent wrong answer."""
    monkeypatch.setattr(frame.crc32c, "crc32c", lambda *_: 0)
    material = make(closed=False)
    path = next(
        path
        for path in sorted(material.files)
        if path.endswith(".log") and b"p0p0" in material.files[path]
    )
    at = material.files[path].index(b"p0p0")
    verdict = judge(material, (Wound(path, "flip", at),))
    assert verdict.outcome == "wrong"
    assert "without a word" in verdict.why


def test_the_death_of_an_interpreter_is_detected(tmp_path: Path) -> None:
    dying = 'import os; print(\'{"case": "one"}\', flush=True); os.abort()'
    ((case, said),) = verdicts([sys.executable, "-c", dying], tmp_path)
    assert (case, said.outcome) == ("one", "died")
