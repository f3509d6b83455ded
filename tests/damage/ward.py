"""Open damaged logs, one after another, and print the verdict of each.

    python -m tests.damage.ward closed|killed <selection> <every>

It runs in a process of its own, because damage may kill the interpreter. It prints the name of each
case before it begins, and its verdict, as a line of JSON, after it.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.repairing.folder import NOT_REPAIRABLE, plan_of
from strandline.changelog.embedded.repairing.plan import carry_out
from strandline.changelog.errors import CorruptLog, FutureFormat, StrandlineError
from strandline.changelog.layout import CLEAN, MANIFEST
from strandline.changelog.memory_storage import MemoryStorage
from tests.damage.material import CLOCK_MS, Answers, Material, ask, load, make, opened
from tests.damage.wounds import Wound, hurt, pairs, single, swaps, tails

Case = tuple[Wound, ...]


class Verdict(NamedTuple):
    """Verdict on a case."""

    outcome: str
    """One of same, prefix, refused and wrong."""
    why: str = ""
    repaired: str = ""
    """One of whole, lossy and wrong; empty if no repair was needed."""


def main(state: str, selection: str, every: str) -> None:
    material = make(closed=state == "closed")
    go_round(select(material, selection), int(every), lambda case: judge(material, case))


def go_round(cases: Iterable[Case], every: int, verdict_of: Callable[[Case], Verdict]) -> None:
    """Print a verdict on every `every`-th case."""
    for number, case in enumerate(cases):
        if number % every == 0:
            say({"case": " + ".join(map(str, case))})
            say(verdict_of(case)._asdict())
    say({"end": True})


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def select(material: Material, selection: str) -> Iterable[Case]:
    """Return the cases of one kind, always in the same order."""
    files = material.files
    if selection == "single":
        return single(files)
    if selection == "pairs":
        return pairs(files)
    if selection == "swaps":
        return swaps(files)
    if selection == "last frames":
        plain = min(path for path in active(files) if material.topic_of(path) == "plain")
        return (case for case in tails(files, plain, 192) if case[0].kind == "cut")
    last = {"frames": 300, "segments": 1 << 20}[selection]
    return chain.from_iterable(tails(files, path, last) for path in sorted(active(files)))


def active(files: Iterable[str]) -> set[str]:
    """Return the last segment of each partition."""
    last: dict[str, str] = {}
    for path in sorted(path for path in files if path.endswith(".log")):
        last[path.rpartition("/")[0]] = path
    return set(last.values())


# One case -----------------------------------------------------------------------------


def judge(material: Material, case: Case) -> Verdict:
    """Open the log and ask everything. If it is refused, repair it and ask again."""
    storage = load(hurt(material.files, case))
    try:
        answers = _asked(storage)
    except StrandlineError as error:
        return _judge_refusal(material, case, storage, error)
    except Exception:
        return Verdict("wrong", traceback.format_exc(limit=-3))
    if answers == material.answers:
        return Verdict("same")
    if not _may_lose_its_tail(material, case):
        return Verdict("wrong", f"other answers, without a word: {_difference(material, answers)}")
    lost = _not_a_prefix(material, case, answers)
    return Verdict("wrong", lost) if lost else Verdict("prefix")


def _asked(storage: MemoryStorage, *, tolerant: bool = False) -> Answers:
    storage.crash()
    owner = opened(storage)
    try:
        return ask(owner, tolerant=tolerant)
    finally:
        owner._log.context.pool.shutdown()


def _judge_refusal(
    material: Material, case: Case, storage: MemoryStorage, error: StrandlineError
) -> Verdict:
    bad = _unclear(material, case, error)
    if bad:
        return Verdict("wrong", bad)
    if isinstance(error, FutureFormat):
        return Verdict("refused", str(error))
    try:
        return Verdict("refused", str(error), _repaired(material, case, storage))
    except Exception:
        return Verdict("wrong", f"{error}\nrepair: {traceback.format_exc(limit=-3)}")


def _unclear(material: Material, case: Case, error: StrandlineError) -> str:
    """Return the parts that an error lacks: the file, or the remedy."""
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, CorruptLog):
        return f"no CorruptLog but {said}"
    if not any(wound.path in said or wound.path.rpartition("/")[0] in said for wound in case):
        return f"it names none of the files: {said}"
    if "strandline repair" not in said and "upgrade" not in said:
        return f"it names no way out: {said}"
    return ""


def _repaired(material: Material, case: Case, storage: MemoryStorage) -> str:
    """Repair the log: it must open, show nothing wrong, and name its losses."""
    clock = ManualClock(CLOCK_MS)
    storage.crash()
    plan = plan_of(check_log(storage, clock=clock), storage, clock)
    carry_out(plan, storage, clock)
    left = [one for one in check_log(storage, clock=clock).report.findings if _is_wrong(one)]
    assert not left, left
    answers = _asked(storage, tolerant=True)
    for question, before in material.answers.items():
        if question[0] == "records":
            after = answers.get(question, {})
            # deleted records may be visible again
            if any(wound.path.endswith(MANIFEST) for wound in case):
                start = material.answers["start", question[1]]
                after = {offset: one for offset, one in after.items() if offset >= start}
                answers[question] = after
                answers["start", question[1]] = max(start, answers.get(("start", question[1]), 0))
            assert after.items() <= before.items(), f"{question} after repair: {after}"
    if _essence(answers) == _essence(material.answers):
        return "whole"
    unknown = _may_lose_its_tail(material, case) and not _not_a_prefix(material, case, answers)
    assert plan.losses or unknown, f"lost without a word: {_difference(material, answers)}"
    return "lossy"


def _is_wrong(finding: Any) -> bool:
    return finding.severity > Severity.NOTE and finding.kind not in NOT_REPAIRABLE


def _essence(answers: Answers) -> Answers:
    return {q: a for q, a in answers.items() if q[0] in ("settings", "topic", "records", "group")}


def _difference(material: Material, answers: Answers) -> str:
    for question, before in material.answers.items():
        if answers.get(question) != before:
            return f"{question}: {answers.get(question)!s:.300} instead of {before!s:.300}"
    return f"new: {answers.keys() - material.answers.keys()}"


# Torn tails ---------------------------------------------------------------------------


def _may_lose_its_tail(material: Material, case: Case) -> bool:
    """Return True if recovery may cut the end of an active segment, as after a kill."""
    clean = CLEAN in material.files and not any(wound.path == CLEAN for wound in case)
    ends = active(material.files)
    return not clean and any(wound.path in ends for wound in case)


def _not_a_prefix(material: Material, case: Case, answers: Answers) -> str:
    """Return the reason why the answers are not those of a log that ended earlier."""
    wounded = {material.topic_of(wound.path) for wound in case}
    for question, before in material.answers.items():
        after = answers.get(question)
        if after == before or question[0] in ("from", "time"):
            continue
        if question[0] == "group" and "__consumer_offsets" in wounded:
            continue
        if question[0] == "records" and question[1].topic in wounded:
            end = max(after, default=-1)
            if after == {offset: one for offset, one in before.items() if offset <= end}:
                continue
        return f"{question}: {after!s:.300} instead of {before!s:.300}"
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
