"""`strandline cleaner` and `strandline clean`: show the state of compaction, and compact now."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
import typer

from strandline.changelog.broker import Broker
from strandline.changelog.cleaning import CleanedPartition, CleaningStatus, check_compacted
from strandline.changelog.errors import StorageFailed
from strandline.framework.cli import output
from strandline.framework.cli.loading import opened
from strandline.framework.cli.offline import ReadingBar
from strandline.framework.cli.options import JsonOption, LogOption

POLL_S = 0.1
"""Seconds between two looks at a running cleaner."""

TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="Compacted topics; by default all of them."),
]


def cleaner(topics: TopicsArgument = None, log: LogOption = None, json: JsonOption = False) -> None:
    """Show how clean each partition of the compacted topics is, and its last cleaning."""
    with opened(log) as where:
        statuses = _statuses_of(where.broker, topics)
    if json:
        output.document(
            [msgspec.to_builtins(status) | {"ratio": status.ratio} for status in statuses]
        )
    elif not statuses:
        output.note("nothing to clean: no compacted topic has records")
    else:
        rows = [_state_row(status) for status in statuses]
        output.listing(rows, list(rows[0]), json=False)
        passes = [_pass_row(status, last) for status in statuses if (last := status.last)]
        if passes:
            output.table(
                "last pass since the log was opened",
                list(passes[0]),
                ([*row.values()] for row in passes),
            )
        for status in statuses:
            if status.reason:
                output.line(f"{_name(status)}: {status.reason}")


def clean(topics: TopicsArgument = None, log: LogOption = None, json: JsonOption = False) -> None:
    """Compact now, even if little is dirty. Active segments are closed for it."""
    with opened(log) as where:
        before = {_name(status): status.last for status in _statuses_of(where.broker, topics)}
        where.broker.clean(topics)
        after = _when_done(where.broker, topics)
    done = {
        _name(status): status.last
        for status in after
        if status.last is not None and status.last != before.get(_name(status))
    }
    if json:
        output.document(msgspec.to_builtins(done))
    elif done:
        rows = ({"partition": name, **_done_row(last)} for name, last in done.items())
        output.listing(list(rows), ("partition", *_DONE), json=False)
    failed = [f"{_name(status)}: {status.reason}" for status in after if status.failures]
    if failed:
        raise StorageFailed(f"{'; '.join(failed)}; the records there are as they were")
    if not done and not json:
        output.note("there was nothing to clean")


def _statuses_of(broker: Broker, topics: Collection[str] | None) -> list[CleaningStatus]:
    for topic in topics or ():
        check_compacted(topic, broker.topic(topic).effective)
    return [status for status in broker.cleaning() if not topics or status.topic in topics]


def _when_done(broker: Broker, topics: Collection[str] | None) -> list[CleaningStatus]:
    """Return the statuses once no cleaning is running, with a bar on a terminal."""
    with ReadingBar("cleaning") as bar:
        while True:
            statuses = _statuses_of(broker, topics)
            at_work = [status for status in statuses if status.state in ("running", "requested")]
            if not at_work:
                return statuses
            running = [status for status in at_work if status.state == "running"]
            bar(sum(s.done_bytes for s in running), sum(s.total_bytes for s in running))
            time.sleep(POLL_S)


def _name(status: CleaningStatus) -> str:
    return f"{status.topic}-{status.partition}"


def _state_row(status: CleaningStatus) -> dict[str, Any]:
    state: str = status.state
    if status.state == "running":
        state = f"running, {output.size(status.done_bytes)} of {output.size(status.total_bytes)}"
    return {
        "partition": _name(status),
        "clean": output.size(status.clean_bytes),
        "dirty": output.size(status.dirty_bytes),
        "active": output.size(status.active_bytes),
        "ratio": f"{status.ratio:.2f} of {status.min_ratio:.2f}",
        "clean up to": status.first_dirty,
        "state": state,
        "failures": status.failures,
        "next try": None if status.next_ms is None else output.moment(status.next_ms),
    }


def _pass_row(status: CleaningStatus, last: CleanedPartition) -> dict[str, Any]:
    return {"partition": _name(status), "began": output.moment(last.started_ms), **_done_row(last)}


def _done_row(last: CleanedPartition) -> dict[str, Any]:
    return {
        "seconds": f"{last.seconds:.2f}",
        "throttled": f"{last.throttled_seconds:.2f}",
        "records": last.read,
        "kept": last.kept,
        "superseded": last.superseded,
        "tombstones": last.tombstones,
        "aborted": last.aborted,
        "no key": last.keyless,
        "bytes": f"{output.size(last.bytes_before)} → {output.size(last.bytes_after)}",
        "segments": f"{last.segments_before} → {last.segments_after}, {last.left_alone} left alone",
        "map": _map(last),
    }


def _map(last: CleanedPartition) -> str:
    """Return how much of the key map was used, as text."""
    spilled = f", {output.size(last.spilled_bytes)} spilled" if last.spilled_bytes else ""
    return f"{last.map_use:.0%}{spilled}" + ("" if last.whole else ", cut short")


_DONE = (
    *("seconds", "throttled", "records", "kept", "superseded", "tombstones", "aborted", "no key"),
    *("bytes", "segments", "map"),
)
