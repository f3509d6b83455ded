"""Faust's documented examples, unmodified but for the URL of the log."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections import Counter
from pathlib import Path

from strandline import changelog
from tests.faust.faust_workers import eventually, latest, rows, worker

TEXT = ["the quick brown fox", "the lazy dog", "the end"]


def test_word_count(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("posts", 2)
        log.append("posts", [{"value": json.dumps(line).encode()} for line in TEXT * 10])
        expected = Counter(" ".join(TEXT * 10).split())
        with worker("sample_word_count", tmp_path) as running:
            eventually(lambda: latest(log, "wordcount-word_counts-changelog") == expected)
            assert running.stop() == 0
        counts: dict[str, list[int]] = {}
        for _, _, word, count in rows(log, "running"):
            counts.setdefault(word, []).append(count)
        assert counts == {word: list(range(1, n + 1)) for word, n in expected.items()}


def test_windows_group_by_ask_sinks_batches_timers_and_views(tmp_path: Path) -> None:
    views = [{"id": f"p{n % 3}", "user": f"u{n % 2}"} for n in range(30)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with changelog.open(tmp_path / "log") as log:
        for topic in ("page_views", "numbers", "batches"):
            log.create_topic(topic, 2)
        log.append("page_views", [{"value": json.dumps(view).encode()} for view in views])
        log.append("numbers", [{"value": b"21"}])
        log.append("batches", [{"value": b"1"}] * 10)
        with worker("sample_features", tmp_path, web=port) as running:

            def said() -> dict[str, list[str]]:
                found: dict[str, list[str]] = {}
                for _, _, key, value in rows(log, "said"):
                    found.setdefault(key, []).append(value)
                return found

            eventually(lambda: latest(log, "features-users-changelog") == {"u0": 15, "u1": 15})
            wanted = {"window", "task", "channel", "ask", "timer", "leader", "batch", None}
            eventually(lambda: wanted <= said().keys())
            eventually(lambda: len(said()["window"]) == 30)
            found = said()
            assert found["ask"] == ["144"]
            assert found[None] == ["42"]
            assert sum(map(int, found["batch"])) == 10
            assert set(found["leader"]) == {"yes"}
            assert {f"p{n} 10" for n in range(3)} <= set(found["window"])

            def page() -> dict[str, int]:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/count/u1/") as answer:
                    return json.loads(answer.read())

            assert page() == {"u1": 15}
            assert running.stop() == 0


def test_tables_in_memory_are_recovered_by_faust_itself(tmp_path: Path) -> None:
    """Faust's default store: at least once, from changelogs whose last offsets are markers."""
    default = {"FAUST_STORE": "memory://", "FAUST_GUARANTEE": "at_least_once"}
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("posts", 2)
        for round_ in (1, 2):
            log.append("posts", [{"value": json.dumps(line).encode()} for line in TEXT])
            expected = {word: n * round_ for word, n in Counter(" ".join(TEXT).split()).items()}
            with worker("sample_word_count", tmp_path, **default) as running:
                topic = "wordcount-word_counts-changelog"
                eventually(lambda of=topic, all_=expected: latest(log, of) == all_)
                assert running.stop() == 0


def test_exactly_once_with_another_store_is_refused(tmp_path: Path) -> None:
    with worker("sample_word_count", tmp_path, FAUST_STORE="memory://") as running:
        assert running.ended(60) != 0
        assert "needs store='strandline://', got 'memory:" in running.text()
