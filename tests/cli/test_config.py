"""`strandline config`: settings of the log as a whole."""

from __future__ import annotations

import pytest

from strandline.changelog.log import Log
from tests.cli.conftest import Command


def rows(shown: str) -> dict[str, list[str]]:
    """Parse the table of settings, by name."""
    words = [line.split() for line in shown.splitlines()]
    return {row[0]: row[1:] for row in words if len(row) == 3}


def test_settings_are_set_shown_and_unset(log: Log, strandline: Command) -> None:
    outcome = strandline("config", "set", "log.retention.hours=2", "log.cleaner.threads=3")
    assert outcome.code == 0, outcome.err
    assert outcome.err == "set for the log: log.cleaner.threads=3, log.retention.ms=7200000\n"
    assert log.config().topic({}).retention_ms == 7_200_000
    shown = strandline("config", "show").out
    assert rows(shown)["log.retention.ms"] == ["7200000", "log"]
    assert rows(shown)["log.segment.bytes"] == ["134217728", "default"]
    assert list(rows(shown))[1:3] == ["log.cleaner.threads", "log.retention.ms"]
    strandline("config", "unset", "log.retention.minutes")
    assert log.config().given == {"log.cleaner.threads": "3"}
    assert "set for the log: nothing" in strandline("config", "unset", "log.cleaner.threads").err


def test_a_topics_settings_are_shown_with_their_source(log: Log, strandline: Command) -> None:
    log.alter_config({"log.retention.ms": "5", "log.segment.bytes": "5000"})
    log.create_topic("t", config={"retention.ms": "7"})
    for command in (("config", "show", "t"), ("topics", "describe", "t")):
        shown = rows(strandline(*command).out)
        assert shown["retention.ms"] == ["7", "topic"]
        assert shown["segment.bytes"] == ["5000", "log"]
        assert shown["cleanup.policy"] == ["delete", "default"]
    described = strandline("topics", "describe", "t", "--json").json
    assert described["config"] == {"retention.ms": "7"}
    assert described["log_defaults"] == {"retention.ms": "5", "segment.bytes": "5000"}
    assert described["effective_config"]["retention.ms"] == "7"
    assert {"name": "segment.bytes", "value": "5000", "source": "log"} in strandline(
        "config", "show", "t", "--json"
    ).json


def test_the_list_of_topics_shows_the_effective_policy(log: Log, strandline: Command) -> None:
    log.create_topic("t")
    strandline("config", "set", "log.cleanup.policy=compact", "--json")
    assert strandline("topics", "list", "--json").json[0]["cleanup"] == "compact"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("set", "retention.ms=5"), 1, "did you mean 'log.retention.ms'"),
        (("set", "log.retention.ms=soon"), 1, "must be a whole number"),
        (("set", "log.retention.ms"), 2, "expected NAME=VALUE"),
        (("set",), 2, "NAME=VALUE"),
        (("unset", "log.nonsense"), 1, "no log setting is called"),
        (("show", "nope"), 1, "UnknownTopic"),
    ],
)
def test_mistakes_are_explained(
    log: Log, strandline: Command, arguments: tuple[str, ...], code: int, says: str
) -> None:
    outcome = strandline("config", *arguments)
    assert (outcome.code, says in outcome.err) == (code, True), outcome.err
    assert log.config().given == {}
