"""One record refused by the log is one dead letter, and all others count once, on every system."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from tests.forms import few_on_kafka
from tests.systems import System

LARGE = b"x" * 5_000
A_CENTURY_MS = 100 * 365 * 24 * 3_600_000


@pytest.mark.long_on_kafka
@pytest.mark.parametrize(
    "what", few_on_kafka(["too far ahead", "too large", "without a key", "a store's value"], 2)
)
def test_one_refused_record_is_one_dead_letter(system: System, what: str) -> None:
    app = sl.App(f"{system.prefix}refused", log=system.url, state_dir=system.state)
    words = app.topic(f"{system.prefix}words", key=str, value=int)
    hour = {"message.timestamp.after.max.ms": "3600000"}
    out = app.topic(
        f"{system.prefix}out", key=str, value=bytes, config={"max.message.bytes": "2000", **hour}
    )
    compacted = app.topic(
        f"{system.prefix}compacted", key=str, value=bytes, config={"cleanup.policy": "compact"}
    )
    seen = app.store("seen", key=str, value=int, default=0)
    blobs = app.store("blobs", key=str, value=bytes)

    @app.task(words, stores=[seen, blobs], on_error="dead_letter", name="t")
    def count(record: sl.Record[str, int]) -> None:
        seen["n"] += 1
        out.send(record.key, b"%d" % record.value)
        if record.value not in (7, 30):
            return
        if what == "too large":
            out.send(record.key, LARGE)
        elif what == "without a key":
            compacted.send(None, b"x")
        elif what == "too far ahead":
            out.send(record.key, b"x", timestamp=record.timestamp + A_CENTURY_MS)
        else:
            blobs[record.key] = LARGE

    with app:
        app.prepare()
        app.broker().alter_topic(f"{app.name}-blobs-changelog", {"max.message.bytes": "2000"})
        words.append([("k", n) for n in range(40)])
        assert app.run(until="idle", progress=False) == 40
        rows: Any = out.to_polars()
        assert [int(value) for value in rows["value"]] == [n for n in range(40) if n not in (7, 30)]
        assert app.query(seen).to_dict() == {"n": 38}
        letters = system.open().read(f"{app.name}-t-dead-letter").to_pylist()
    heads = [{h["key"]: h["value"] for h in letter["headers"]} for letter in letters]
    assert [head["origin.offset"] for head in heads] == [b"7", b"30"]
    assert {head["error.type"] for head in heads} <= {b"RecordTooLarge", b"InvalidRecord"}
