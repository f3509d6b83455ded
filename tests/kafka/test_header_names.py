"""Headers as clients in other languages write them: their names need not be UTF-8."""

from __future__ import annotations

from pathlib import Path

import strandline as sl
from strandline import changelog
from tests.kafka.raw_records import Header, produce

HEADERS: list[list[Header]] = [
    [],
    [(b"good", b"1"), (b"\xff\xfe", b"2"), (b"caf\xe9", None), (b"good", b"3")],
    [(b"", b"4")],
]
READ = [
    (),
    (("good", b"1"), ("\ufffd", b"2"), ("\ufffd", None), ("good", b"3")),
    (("", b"4"),),
]


def test_a_header_name_that_is_not_utf8_stops_no_reader(
    kafka: str, name: str, tmp_path: Path
) -> None:
    """Before, one such record ended every read of its partition with SystemError."""
    topic, seen = f"{name}-in", []
    with changelog.open(kafka) as log:
        log.create_topic(topic)
        produce(kafka.removeprefix("kafka://"), topic, [(b"\x01", one) for one in HEADERS])
        records = log.read(topic).column("headers").to_pylist()
        assert [
            tuple((header["key"], header["value"]) for header in headers or ())
            for headers in records
        ] == READ
    with sl.App(f"{name}-app", log=kafka, state_dir=tmp_path) as app:
        numbers = app.topic(topic, value=int)

        @app.task(numbers)
        def look(record: sl.Record[str, int]) -> None:
            seen.append(record.headers)

        assert app.run(until="idle", timeout=60) == len(READ)
    assert seen == READ
