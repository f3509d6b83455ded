"""Agents that are restarted after a record that they could not handle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.errors import CoordinatorLoading
from strandline.changelog.records import TopicPartition
from tests.faust.faust_workers import FaustLog, FaustProcess, eventually, in_folder, latest, worker

CHAINS = [
    *("group", "relay", "both", "echo", "filtered", "noack", "acked", "isolated", "sink"),
    *("key", "update", "waiting", "own", "cancelled", "later"),
]
FILTERED = ["echo", "filtered"]
VALUES = ["a", "bad", "none", "bad", "b", *["bad"] * 20, "c"]
SKIP = "?on_error=skip"


def values_by_key(log: changelog.Log, topic: str) -> dict[str, Counter[str]]:
    """Return how often each value of each key was committed."""
    found: dict[str, Counter[str]] = {}
    for row in log.read(topic).to_pylist():
        key = "none" if row["key"] is None else row["key"].decode()
        found.setdefault(key, Counter())[row["value"].decode()] += 1
    return found


def test_an_agent_goes_on_after_a_failure_whatever_its_chain_of_streams(tmp_path: Path) -> None:
    everything = Counter(value for value in VALUES if value != "bad")
    some = Counter({value: n for value, n in everything.items() if value != "none"})
    expected = {chain: some if chain in FILTERED else everything for chain in CHAINS}
    expected |= {"own": Counter("abc"), "later": Counter("abc")}
    with changelog.open(tmp_path / "log") as log:
        for topic in ("done", "echoed"):
            log.create_topic(topic, 1)
        for chain in CHAINS:
            log.create_topic(f"to-{chain}", 1)
            values = {"own": ["a", "bad", "b", "c"], "later": ["a", "b", "c"]}.get(chain, VALUES)
            log.append(f"to-{chain}", [{"value": value.encode()} for value in values])
        with worker("sample_chains", in_folder(tmp_path), tmp_path, FAUST_OPTIONS=SKIP) as running:

            def have_ended() -> bool:
                done = values_by_key(log, "done")
                return all("c" in done.get(chain, ()) for chain in CHAINS)

            eventually(have_ended)
            assert running.stop() == 0
        done = values_by_key(log, "done")
        assert done.pop("none") == everything  # results of the agent with a sink, without keys
        assert done == expected
        assert values_by_key(log, "echoed") == {"none": some}
        totals = {chain: sum(values.values()) for chain, values in expected.items()}
        assert latest(log, "chains-seen-changelog") == {**totals, "updated": 1}
        assert "handed on before" not in running.text()


def test_a_key_function_that_raises_stops_the_worker(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        for topic in ("done", "to-key"):
            log.create_topic(topic, 1)
        log.append("to-key", [{"value": value} for value in (b"a", b"bad")])
        with worker("sample_chains", in_folder(tmp_path), tmp_path) as running:
            assert running.ended(60) != 0
        with worker("sample_chains", in_folder(tmp_path), tmp_path, FAUST_OPTIONS=SKIP) as running:
            eventually(lambda: values_by_key(log, "done") == {"key": Counter("a")})
            assert running.stop() == 0
        at = log.broker.committed("chains")[TopicPartition("to-key", 0)]
        assert at.offset == 2


def test_a_key_function_that_is_cut_off_by_a_stop_is_called_again(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        for topic in ("done", "to-key"):
            log.create_topic(topic, 1)
        log.append("to-key", [{"value": value} for value in (b"a", b"slow", b"b")])
        for _ in range(2):
            with worker("sample_chains", in_folder(tmp_path), tmp_path) as running:
                eventually(lambda running=running: "slow has begun" in running.text())
                assert running.stop() == 0
        assert values_by_key(log, "done") == {"key": Counter("a")}


@contextmanager
def blocks(
    tmp_path: Path, records: Mapping[str, list[str]], policy: str = ""
) -> Iterator[FaustProcess]:
    """Run the agents of `sample_blocks` on records, by topic."""
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("done", 1)
        for topic, values in records.items():
            log.create_topic(topic, 1)
            log.append(topic, [{"value": value.encode()} for value in values])
    with worker("sample_blocks", in_folder(tmp_path), tmp_path, FAUST_OPTIONS=policy) as running:
        yield running


def outcome(tmp_path: Path, topic: str) -> tuple[list[str], int]:
    """Return the outputs of the agents of `sample_blocks`, and the offset committed for a topic."""
    with changelog.open(tmp_path / "log") as log:
        done = [row["value"].decode() for row in log.read("done").to_pylist()]
        try:
            at = log.broker.committed("blocks").get(TopicPartition(topic, 0))
        except CoordinatorLoading:  # a commit is under way
            return done, -1
        return done, 0 if at is None else at.offset


def test_a_record_whose_block_raises_stops_the_worker(tmp_path: Path) -> None:
    with blocks(tmp_path, {"raising": ["a", "bad", "b"]}) as running:
        assert running.ended(60) != 0
    assert outcome(tmp_path, "raising") == (["a"], 1)


def test_a_record_whose_block_is_cut_off_by_a_stop_is_handled_again(tmp_path: Path) -> None:
    with blocks(tmp_path, {"raising": ["a", "slow"]}) as running:
        eventually(lambda: "slow has begun" in running.text())
        assert running.stop() == 0
    assert outcome(tmp_path, "raising") == (["a"], 1)


def test_a_block_that_raises_is_skipped_unless_the_agent_catches_it(tmp_path: Path) -> None:
    records = {
        "raising": ["a", "bad", "b"],
        "catching": ["c", "bad caught"],
        "timing": ["slow", "d", "slow"],
    }
    with blocks(tmp_path, records, SKIP) as running:
        eventually(lambda: all(outcome(tmp_path, one)[1] == len(of) for one, of in records.items()))
        assert running.stop() == 0
    done, _ = outcome(tmp_path, "timing")
    assert sorted(done) == ["a", "b", "bad caught", "c", "d", "slow", "slow"]


@pytest.mark.parametrize("topic", ["batches", "grouped"])
def test_a_batch_that_raises_stops_the_worker(tmp_path: Path, topic: str) -> None:
    with blocks(tmp_path, {topic: ["a", "b", "bad"]}, SKIP) as running:
        assert running.ended(60) != 0
    assert outcome(tmp_path, topic)[0] == []


@pytest.mark.parametrize("topic", ["shared", "twice", "later", "by_task"])
def test_an_agent_does_not_acknowledge_for_another_one(tmp_path: Path, topic: str) -> None:
    """A block and its stream, or two calls, would count for both agents that read the record."""
    with blocks(tmp_path, {topic: ["a", "stop"]}) as running:
        eventually(lambda: "slow has done stop" in running.text())
        eventually(lambda: outcome(tmp_path, topic)[1] > 0)
        running.kill()
    done, committed = outcome(tmp_path, topic)
    assert (sorted(done), committed) == (["a", "a 1", "a 2"], 1)


def test_an_agent_does_not_acknowledge_a_batch_for_another_one(tmp_path: Path) -> None:
    with blocks(tmp_path, {"batched": ["stop"], "raising": []}) as running:
        eventually(lambda: "slow has done stop" in running.text())
        with changelog.open(tmp_path / "log") as log:
            log.append("raising", [{"value": b"a"}])
        eventually(lambda: outcome(tmp_path, "raising")[1] == 1)  # a commit takes all that is done
        running.kill()
    assert outcome(tmp_path, "batched") == (["a"], 0)


def test_a_restarted_agent_of_one_partition_ends_with_it(tmp_path: Path) -> None:
    where = in_folder(tmp_path)
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("done", 1)
        log.create_topic("apart", 2)
        for number in range(2):
            log.append("apart", [{"value": b"bad"}, {"value": b"a"}], partition=number)
        found = FaustLog(log, "")
        with worker("sample_blocks", where, tmp_path, FAUST_OPTIONS=SKIP) as first:
            eventually(lambda: len(log.read("done")) == 2)
            (tmp_path / "second").mkdir()
            with worker("sample_blocks", where, tmp_path / "second", FAUST_OPTIONS=SKIP) as second:
                eventually(lambda: found.owned("blocks", "apart") == [1, 1])
                assert second.stop() == 0
            eventually(lambda: found.owned("blocks", "apart") == [2])
            for number in range(2):
                log.append("apart", [{"value": b"b"}], partition=number)
            eventually(lambda: len(log.read("done")) == 4)
            assert first.stop() == 0


def test_a_dead_letter_of_an_added_partition_is_kept(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        for topic, partitions in {"done": 1, "raising": 3, "raising.dead-letter": 2}.items():
            log.create_topic(topic, partitions)
        log.append("raising", [{"value": b"bad"}], partition=2)
        letters = {"FAUST_OPTIONS": "?on_error=dead_letter"}
        with worker("sample_blocks", in_folder(tmp_path), tmp_path, **letters) as running:
            eventually(lambda: len(log.read("raising.dead-letter")) == 1)
            assert running.stop() == 0


def test_an_error_that_all_records_have_stops_the_worker(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("done", 1)
        log.create_topic("to-update", 2)  # more partitions than the table has
        log.append("to-update", [{"value": b"a"}], partition=1)
        with worker("sample_chains", in_folder(tmp_path), tmp_path, FAUST_OPTIONS=SKIP) as running:
            assert running.ended(60) != 0
        assert len(log.read("done")) == 0


READERS = ["plain", "parallel", "group", "relay", "batch", "batch-of-group"]
NUMBERS = [b"1", b"{bad", b"2", b"{bad", b"{bad", b"3"]
SHARED = [b"{bad"] * 20


def test_a_record_that_cannot_be_decoded_is_a_dead_letter_and_agents_go_on(tmp_path: Path) -> None:
    records = {**{f"to-{reader}": NUMBERS for reader in READERS}, "to-both": SHARED}
    expected = {**{one: Counter("123") for one in READERS}, "word": Counter({"4": len(SHARED)})}
    letters = "?on_error=dead_letter"
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("done", 1)
        for topic, values in records.items():
            log.create_topic(topic, 1)
            log.append(topic, [{"value": value} for value in values])
        with worker(
            "sample_undecodable", in_folder(tmp_path), tmp_path, FAUST_OPTIONS=letters
        ) as running:
            eventually(lambda: values_by_key(log, "done") == expected)
            assert running.stop() == 0
        assert values_by_key(log, "done") == expected
        for topic, values in records.items():
            kept = log.read(f"{topic}.dead-letter").to_pylist()
            assert [one["value"] for one in kept] == [one for one in values if b"bad" in one]


def test_a_record_that_one_of_two_agents_cannot_decode_stops_the_worker(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        for topic in ("done", "to-both"):
            log.create_topic(topic, 1)
        log.append("to-both", [{"value": b"{bad"}])
        with worker("sample_undecodable", in_folder(tmp_path), tmp_path) as running:
            assert running.ended(60) != 0
        assert values_by_key(log, "done") == {}
