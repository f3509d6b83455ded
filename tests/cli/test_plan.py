"""`plan`: the declared state of an app, compared with what its log has."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import UnknownTopic
from tests.cli.conftest import Command

CODE = """
import pyarrow as pa
import strandline as sl

app = sl.App("airport", log={log!r})
flights = app.topic("flights", value=pa.schema([("origin", pa.string()), ("delay", pa.int64())]))
stream = app.stream(flights)
{streams}
"""
COUNTS = 'stream.group_by("origin").agg(n=sl.count(), name="counts").to("counts")'
HOURLY = (
    'stream.group_by("origin").window(sl.tumbling("{size}")).agg(n=sl.count(), name="hourly")'
    '.to("hourly")'
)

SEEN = 'seen = app.store("seen", key=str, value=int)'
TASK = """
@app.task(flights, stores=[{stores}], name="see")
def see(record):
    pass
"""

OUTPUT = """
@app.task(flights, name="see", on_error="dead_letter")
def see(record):
    pass

counted = app.topic("counted", {settings})
"""

NUMBERS = count()
"""Numbers of modules, because Python imports each name once."""


class Deployed:
    """A log, and versions of an app on it."""

    def __init__(self, folder: Path, strandline: Command) -> None:
        self.log = str(folder / "log")
        self._folder = folder
        self._strandline = strandline

    def version(self, *streams: str) -> str:
        """Write a version of the app; return its module and name."""
        module = f"airport_{next(NUMBERS)}"
        code = CODE.format(log=self.log, streams="\n".join(streams))
        (self._folder / f"{module}.py").write_text(code)
        return f"{module}:app"

    def run(self, *streams: str, code: int = 0) -> None:
        target = self.version(*streams)
        outcome = self._strandline("run", target, "--log", self.log, "--until", "idle")
        assert outcome.code == code, outcome.err

    def plan(self, *streams: str, options: tuple[str, ...] = ()) -> Any:
        target = self.version(*streams)
        return self._strandline("plan", target, "--log", self.log, "--json", *options)


@pytest.fixture
def deployed(tmp_path: Path, strandline: Command, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    monkeypatch.syspath_prepend(tmp_path)
    made = Deployed(tmp_path, strandline)
    with sl.App("producer", log=made.log) as app:
        import pyarrow as pa

        schema = pa.schema([("origin", pa.string()), ("delay", pa.int64())])
        flights = app.topic("flights", value=schema)
        flights.append(pa.table({"origin": ["JFK"], "delay": [1]}))
    made.run(COUNTS, HOURLY.format(size="1h"))
    return made


def verdicts(outcome: Any) -> dict[str, str]:
    return {line["name"]: line["verdict"] for line in outcome.json["state"]}


def test_what_is_deployed_as_declared_is_the_same(deployed: Deployed) -> None:
    outcome = deployed.plan(COUNTS, HOURLY.format(size="60m"))
    assert outcome.code == 0
    assert set(verdicts(outcome).values()) == {"same"}
    assert {"counts", "hourly"} <= set(verdicts(outcome))


def test_a_changed_operator_is_named_with_the_difference(deployed: Deployed) -> None:
    outcome = deployed.plan(COUNTS, HOURLY.format(size="2h"))
    assert outcome.code == 1
    assert verdicts(outcome)["hourly"] == "changed"
    [line] = [line for line in outcome.json["state"] if line["name"] == "hourly"]
    assert line["reasons"] == 'window.size: "1h" before, "2h" now'


def test_new_and_orphaned_state_is_listed_and_orphans_can_be_dropped(deployed: Deployed) -> None:
    new = 'stream.group_by("origin").agg(most=sl.max("delay"), name="most").to("most")'
    outcome = deployed.plan(COUNTS, new)
    found = verdicts(outcome)
    assert (outcome.code, found["counts"], found["most"]) == (0, "same", "new")
    assert found["airport-hourly-changelog"] == "orphaned"
    deployed.plan(COUNTS, new, options=("--drop-orphans", "--yes"))
    assert "orphaned" not in verdicts(deployed.plan(COUNTS, new)).values()
    deployed.run(COUNTS, new)
    assert set(verdicts(deployed.plan(COUNTS, new)).values()) == {"same"}


def test_records_that_would_be_left_behind_are_named_and_can_be_dropped(deployed: Deployed) -> None:
    with changelog.open(deployed.log) as log, log.producer() as producer:
        batch = log.read("airport-counts-repartition")
        assert len(batch) > 0
        producer.send("airport-counts-repartition", batch["value"].to_pylist()[0], partition=0)
    outcome = deployed.plan(HOURLY.format(size="1h"))
    [line] = [line for line in outcome.json["state"] if line["reasons"]]
    assert outcome.code == 1
    assert (line["name"], line["verdict"]) == ("airport-counts-repartition", "orphaned")
    assert "unhandled records in airport-counts-repartition (1)" in line["reasons"]
    dropped = deployed.plan(HOURLY.format(size="1h"), options=("--drop-orphans", "--yes"))
    assert dropped.code == 0
    deployed.run(HOURLY.format(size="1h"))


def test_rows_without_a_column_that_is_used_now_change_their_topic(deployed: Deployed) -> None:
    kept = (COUNTS, HOURLY.format(size="1h"))
    once = 'once = stream.drop_duplicates(on="origin", within="1h", name="once")'
    counted = '{}.group_by("origin").agg(n=sl.count(), name="firsts").to("firsts")'
    deployed.run(*kept, once, counted.format("once"))
    changed = counted.format('once.filter(sl.col("delay") > 0)')
    assert deployed.plan(*kept, once, changed).code == 0
    with changelog.open(deployed.log) as log, log.producer() as producer:
        row = {"origin": "JFK"}
        producer.send("airport-once-repartition", row, key=b"\xa3JFK", partition=0)
    outcome = deployed.plan(*kept, once, changed)
    [line] = [line for line in outcome.json["topics"] if line["reasons"]]
    assert (outcome.code, line["name"]) == (1, "airport-once-repartition")
    assert line["verdict"] == "changed"
    assert "unhandled rows (1) that an earlier version has written without delay" in line["reasons"]


def test_a_task_whose_offset_is_not_known_changes_its_input(deployed: Deployed) -> None:
    counts = (COUNTS, HOURLY.format(size="1h"))
    fails = """
@app.task(flights, name="{name}")
def handle(record):
    raise ValueError("a bug")
"""
    with changelog.open(deployed.log) as log:
        log.append("flights", [{"origin": "JFK", "delay": 1}])
    deployed.run(*counts, fails.format(name="see"), code=1)
    outcome = deployed.plan(*counts, fails.format(name="look"))
    [line] = [line for line in outcome.json["topics"] if line["reasons"]]
    assert (outcome.code, line["name"], line["verdict"]) == (1, "flights", "changed")
    assert "task 'see' does not read it any more" in line["reasons"]
    assert deployed.plan(*counts, fails.format(name="see")).code == 0


def test_a_store_that_is_declared_but_in_no_task_is_unused_and_kept(deployed: Deployed) -> None:
    """As if `stores=` was forgotten."""
    deployed.run(COUNTS, HOURLY.format(size="1h"), SEEN, TASK.format(stores="seen"))
    streams = COUNTS, HOURLY.format(size="1h"), SEEN, TASK.format(stores="")
    outcome = deployed.plan(*streams, options=("--drop-orphans", "--yes"))
    assert verdicts(outcome)["seen"] == "unused"
    with changelog.open(deployed.log) as log:
        assert log.broker.topic("airport-seen-changelog").partitions == 1
    outcome = deployed.plan(*streams[:2], options=("--drop-orphans", "--yes"))
    assert verdicts(outcome)["airport-seen-changelog"] == "orphaned"
    with changelog.open(deployed.log) as log, pytest.raises(UnknownTopic):
        log.broker.topic("airport-seen-changelog")


def topics(outcome: Any) -> dict[str, tuple[str, str]]:
    return {line["name"]: (line["verdict"], line["reasons"]) for line in outcome.json["topics"]}


SETTINGS = 'value=int, partitions=2, config={"retention.ms": "86400000"}'


def test_topics_are_new_until_the_app_has_run(deployed: Deployed) -> None:
    expected = dict.fromkeys(["counted", "airport-see-dead-letter"], ("new", ""))
    assert topics(deployed.plan(OUTPUT.format(settings=SETTINGS))) == expected | {
        "flights": ("same", "")
    }
    deployed.run(OUTPUT.format(settings=SETTINGS))
    same = dict.fromkeys([*expected, "flights"], ("same", ""))
    assert topics(deployed.plan(OUTPUT.format(settings=SETTINGS))) == same


CHANGED_TOPICS = {
    "partitions": ("value=int, partitions=3", 1, "changed", "has 2 partitions, but is declared"),
    "form": ("value=pa.schema([('n', pa.int64())])", 1, "changed", "'counted' holds bytes"),
    "settings": (
        'value=int, config={"retention.ms": "1000", "retention.millis": "1"}',
        0,
        "same",
        "not applied: retention.ms is 86400000, not 1000, retention.millis is no setting",
    ),
}


@pytest.mark.parametrize(
    ("settings", "code", "verdict", "reason"), CHANGED_TOPICS.values(), ids=CHANGED_TOPICS
)
def test_a_changed_topic_is_named_with_the_difference(
    deployed: Deployed, settings: str, code: int, verdict: str, reason: str
) -> None:
    deployed.run(OUTPUT.format(settings=SETTINGS))
    outcome = deployed.plan(OUTPUT.format(settings=settings))
    found = topics(outcome)["counted"]
    assert (outcome.code, found[0]) == (code, verdict)
    assert reason in found[1]


PARTITIONED = """
names = app.topic("names", key=str, value=int, partitions={partitions})
by_value = app.repartition(names, lambda record: record.value, name="by-value", key_type=int)
seen = app.store("seen", key=str, value=int)
valued = app.store("valued", key=int, value=int)

@app.task(names, stores=[seen])
def see(record):
    seen[record.key] = 1

@app.task(by_value, stores=[valued])
def value(record):
    valued[record.key] = 1
"""


def test_more_partitions_of_an_input_change_the_stores_of_its_task(
    deployed: Deployed, strandline: Command
) -> None:
    deployed.run(PARTITIONED.format(partitions=2))
    strandline("topics", "add-partitions", "names", "4", "--log", deployed.log)
    outcome = deployed.plan(PARTITIONED.format(partitions=4))
    [seen] = [line for line in outcome.json["state"] if line["name"] == "seen"]
    assert (outcome.code, seen["verdict"]) == (1, "changed")
    assert "has 2 partitions, but the input of task 'see' has 4" in seen["reasons"]
    found = topics(outcome)
    assert (found["names"][0], found["airport-by-value-repartition"][0]) == ("same", "changed")
    assert "`strandline reset` makes it again" in found["airport-by-value-repartition"][1]


def test_columns_that_are_added_extend_a_topic_and_others_are_refused(deployed: Deployed) -> None:
    typed = "value=pa.schema([{}])"
    old, more = '("n", pa.int64())', '("x", pa.string())'
    deployed.run(OUTPUT.format(settings=typed.format(old)))
    outcome = deployed.plan(OUTPUT.format(settings=typed.format(f"{old}, {more}")))
    assert (outcome.code, topics(outcome)["counted"]) == (0, ("extended", ""))
    outcome = deployed.plan(OUTPUT.format(settings=typed.format(more)))
    assert (outcome.code, topics(outcome)["counted"][0]) == (1, "changed")


def test_settings_that_an_existing_topic_does_not_have_are_logged(
    deployed: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    deployed.run(OUTPUT.format(settings=SETTINGS))
    assert "do not apply" not in caplog.text
    deployed.run(OUTPUT.format(settings='value=int, config={"retention.ms": "1000"}'))
    assert "'counted' exists, so its declared settings do not apply: retention.ms" in caplog.text


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
def test_a_lost_changelog_or_repartition_topic_is_named(deployed: Deployed, again: bool) -> None:
    """The app is refused then, until it is reset."""
    streams = COUNTS, HOURLY.format(size="1h")
    state = "airport-hourly-changelog"
    with changelog.open(deployed.log) as log:
        [between] = [one.name for one in log.topics() if one.name.endswith("-repartition")][:1]
        for topic in (state, between):
            partitions = log.topic(topic).partitions
            log.delete_topic(topic)
            if again:
                log.create_topic(topic, partitions, config={"cleanup.policy": "compact"})
    outcome = deployed.plan(*streams)
    assert outcome.code == 1
    assert verdicts(outcome) | {"counts": "same"} == verdicts(outcome)
    [line] = [line for line in outcome.json["state"] if line["topic"] == state]
    for verdict, reasons in (tuple(topics(outcome)[between]), (line["verdict"], line["reasons"])):
        assert (verdict, "strandline reset airport" in reasons) == ("changed", True)
    with changelog.open(deployed.log) as log:
        assert {one.name for one in log.topics()}.isdisjoint({state, between}) != again
