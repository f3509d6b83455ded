"""Faust's documented examples, unmodified but for the URL of the log."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.faust.faust_workers import FaustLog, eventually, free_port, page, worker
from tests.systems import System

TEXT = ["the quick brown fox", "the lazy dog", "the end"]


def test_word_count(system: System, log: FaustLog, tmp_path: Path) -> None:
    log.create("posts", 2)
    log.append("posts", [{"value": json.dumps(line).encode()} for line in TEXT * 10])
    expected = Counter(" ".join(TEXT * 10).split())
    port = free_port()
    with worker("sample_word_count", system, tmp_path, web=port) as running:
        eventually(lambda: log.latest("wordcount-word_counts-changelog") == expected)
        eventually(lambda: page(port, "/count/the/") == {"the": 30})
        assert page(port, "/seen/the/") == {"the": True}
        assert running.stop() == 0
        assert "| Word | Count |" in running.text()
    counts: dict[str, list[int]] = {}
    for _, _, word, count in log.rows("running"):
        counts.setdefault(word, []).append(count)
    assert counts == {word: list(range(1, n + 1)) for word, n in expected.items()}
    changelog = log.log.broker.topic(f"{log.prefix}wordcount-word_counts-changelog")
    assert changelog.config["cleanup.policy"] == "compact"


def test_windows_group_by_ask_sinks_batches_timers_and_views(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    views = [{"id": f"p{n % 3}", "user": f"u{n % 2}"} for n in range(30)]
    port = free_port()
    for topic in ("page_views", "numbers", "batches"):
        log.create(topic, 2)
    log.append("page_views", [{"value": json.dumps(view).encode()} for view in views])
    log.append("numbers", [{"value": b"21"}])
    log.append("batches", [{"value": b"1"}] * 10)
    with worker("sample_features", system, tmp_path, web=port) as running:

        def said() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for _, _, key, value in log.rows("said"):
                found.setdefault(key, []).append(value)
            return found

        eventually(lambda: log.latest("features-users-changelog") == {"u0": 15, "u1": 15})
        wanted = {"window", "task", "channel", "ask", "timer", "leader", "batch", None}
        eventually(lambda: wanted <= said().keys())
        eventually(lambda: len(said()["window"]) == 30)
        found = said()
        assert found["ask"] == ["144"]
        assert found[None] == ["42"]
        assert sum(map(int, found["batch"])) == 10
        assert set(found["leader"]) == {"yes"}
        assert {f"p{n} 10" for n in range(3)} <= set(found["window"])

        assert page(port, "/count/u1/") == {"u1": 15}
        assert running.stop() == 0


@pytest.mark.long_on_kafka
def test_tables_in_memory_are_recovered_by_faust_itself(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """Faust's default store: at least once, from changelogs whose last offsets are markers."""
    default = {"FAUST_STORE": "memory://", "FAUST_GUARANTEE": "at_least_once"}
    log.create("posts", 2)
    for round_ in (1, 2):
        log.append("posts", [{"value": json.dumps(line).encode()} for line in TEXT])
        expected = {word: n * round_ for word, n in Counter(" ".join(TEXT).split()).items()}
        with worker("sample_word_count", system, tmp_path, **default) as running:
            topic = "wordcount-word_counts-changelog"
            eventually(lambda of=topic, all_=expected: log.latest(of) == all_)
            assert running.stop() == 0


@pytest.mark.parametrize("system", ["embedded"], indirect=True)
def test_exactly_once_with_another_store_is_refused(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    with worker("sample_word_count", system, tmp_path, FAUST_STORE="memory://") as running:
        assert running.ended(60) != 0
        assert "needs store='strandline://', got 'memory:" in running.text()


def test_work_without_a_record_commits_no_offset_of_old_records(
    system: System, log: FaustLog, tmp_path: Path
) -> None:
    """The worker begins at the end, so a commit must not take it back to the start."""
    log.create("numbers", 1)
    log.append("numbers", [{"value": b"21"}] * 3)
    with worker("sample_features", system, tmp_path, FAUST_RESET="latest") as running:
        eventually(lambda: "channel" in {key for *_, key, _ in log.rows("said")})
        assert running.stop() == 0
    assert log.committed("features", "numbers") in ({}, {0: 3})
