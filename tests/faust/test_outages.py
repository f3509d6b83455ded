"""A Kafka cluster that cannot be reached: workers end with its error, or wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_outages import stopped
from tests.faust.faust_workers import FaustLog, FaustProcess, eventually
from tests.faust.test_exactly_once import Source, is_alive
from tests.kafka.brokers import Running
from tests.systems import System
from tests.workers.processes import ending

IMPATIENT = "?message.timeout.ms=2000&socket.timeout.ms=1000"
"""Properties with which a call soon fails, so that the worker waits and not the client."""


@pytest.mark.slow
def test_a_worker_without_a_broker_ends_and_says_why(tmp_path: Path) -> None:
    dead, unknown = (
        FaustProcess("sample_word_count", System("kafka", url, tmp_path, ""), tmp_path)
        for url in ("kafka://127.0.0.1:9", "kafka://no-such-host.invalid:9092")
    )
    with ending([dead, unknown]):
        assert dead.ended(90) != 0
        assert unknown.ended(90) != 0
    assert "kafka://127.0.0.1:9: no broker answers: " in dead.text()
    assert "Connection refused" in dead.text()
    assert "kafka://no-such-host.invalid:9092: no broker answers: " in unknown.text()


@pytest.mark.slow
@pytest.mark.long_on_kafka
@pytest.mark.parametrize("system", ["kafka"], indirect=True)
def test_a_worker_waits_for_a_cluster_that_does_not_answer(
    system: System, log: FaustLog, running: Running, tmp_path: Path
) -> None:
    source = Source(log, seed=8)
    source.append(300)
    one = FaustProcess("sample_one_to_one", system, tmp_path, FAUST_OPTIONS=IMPATIENT)
    with ending([one]):
        eventually(lambda: is_alive(log, 0))
        source.append(2000)
        with stopped(running):
            eventually(lambda: "the app waits for the log" in one.text(), within=60)
        eventually(source.is_copied, within=90)
        assert one.stop() == 0
    source.check()
