"""Filters evaluated by the source give the rows that Spark's own evaluation gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests.forms import by_form, first_of
from tests.spark.writing import Writer

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from strandline.framework.spark.columns import METADATA
from strandline.framework.spark.filters import column_of, passing, supported
from strandline.framework.spark.pruning import metadata_filters, pushable
from strandline.framework.table_types import INSTANT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.changelog.log import Log

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NAN, ENDLESS = float("nan"), float("inf")
SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("z", pa.binary()),
        ("flag", pa.bool_()),
        ("dec", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("u", pa.uint32()),
        ("inner", pa.struct([("a", pa.int32())])),
    ]
)
VALUES: dict[str, list[Any]] = {
    "n": [-1, 0, 1, 2, 2**31 - 1, None],
    "big": [-(2**63), 0, 1, 5, 2**63 - 1, None],
    "x": [-ENDLESS, -0.0, 0.0, 0.1, 1.5, ENDLESS, NAN, None],
    "f": [-0.0, 0.1, 1.5, NAN, -ENDLESS, None],
    "s": ["", "a", "ab", "b", "é", "ab%", "z\U0001f600", None],
    "z": [b"", b"a", b"a\x00", b"\xff", b"b", None],
    "flag": [True, False, None],
    "dec": [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50"), Decimal("99999999.99"), None],
    "day": [date(1969, 12, 31), date(1970, 1, 1), date(2024, 5, 1), None],
    "at": [datetime(2024, 5, 1, 0, 0, 0, us, tzinfo=UTC) for us in (0, 1, 999_999)] + [None],
    "local": [datetime(2024, 5, 1), datetime(1960, 1, 1), None],
    "u": [0, 2**32 - 1, None],
    "inner": [{"a": 1}, {"a": None}, None],
}
ROWS = [
    {name: values[row % len(values)] for name, values in VALUES.items()} for row in range(60)
] + [None]


def literals(name: str) -> list[tuple[Any, str]]:
    """Return values to compare a column with, each with its text in SQL."""
    kind = dict(DTYPES)[name]
    known = [value for value in VALUES[name] if value is not None]
    between = {"x": [2.5], "n": [7], "s": ["aa"], "z": [b"aa"], "dec": [Decimal("7.25")]}
    return [(value, f"cast({text(value)} as {kind})") for value in known + between.get(name, [])]


def text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        zone = "timestamp" if value.tzinfo else "timestamp_ntz"
        return f"{zone}'{value.isoformat(sep=' ')}'"
    if isinstance(value, float):
        return f"double('{value!r}')"
    return f"'{value}'" if isinstance(value, str | date) else str(value)


DTYPES = [
    *(("n", "int"), ("big", "bigint"), ("x", "double"), ("f", "float"), ("s", "string")),
    *(("z", "binary"), ("flag", "boolean"), ("dec", "decimal(10,2)"), ("day", "date")),
    *(("at", "timestamp"), ("local", "timestamp_ntz"), ("u", "bigint")),
]


def conditions() -> Iterator[tuple[str, Filter]]:
    """Yield conditions in SQL, each with the filter that Spark makes of it."""
    for name, _ in DTYPES:
        path = (name,)
        for value, sql in literals(name):
            for kind, operator in OPERATORS.items():
                yield f"{name} {operator} {sql}", kind(path, stored(name, value))
        wanted = literals(name)[:3]
        within = ", ".join(sql for _, sql in wanted)
        member = In(path, [stored(name, value) for value, _ in wanted])
        yield f"{name} in ({within})", member
        yield f"{name} in ({within}, null)", In(path, [*member.value, None])
        yield f"{name} is null", IsNull(path)
        yield f"{name} is not null", IsNotNull(path)
    yield "x in (double('NaN'), 1.5D)", In(("x",), [NAN, 1.5])
    for part in ("", "a", "b", "é", "%"):
        for kind in (StringStartsWith, StringEndsWith, StringContains):
            yield SEARCHES[kind].format(text(part)), kind(("s",), part)
    yield "inner is null", IsNull(("inner",))


def stored(name: str, value: Any) -> Any:
    """Return a literal as Spark sends it: of a float, the double that equals it."""
    return float(np.float32(value)) if name == "f" else value


OPERATORS = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
SEARCHES = {
    StringStartsWith: "startswith(s, {})",
    StringEndsWith: "endswith(s, {})",
    StringContains: "contains(s, {})",
}


@pytest.fixture
def load(spark: SparkSession, log: Log, tmp_path: Path) -> Iterator[Callable[..., DataFrame]]:
    """Function that loads three partitions; one of them is empty."""
    log.broker.create_topic("t", 3, schema=SCHEMA)
    for partition in range(2):
        Writer(log.broker).write_rows(ROWS, SCHEMA, partition=partition)
    reader = spark.read.format("strandline").option("subscribe", "t")
    reader = reader.option("includeMetadata", "true")
    before = str(spark.conf.get(PUSHDOWN))
    spark.conf.set(PUSHDOWN, "true")
    yield lambda **options: reader.options(**options).load(str(tmp_path / "log"))
    spark.conf.set(PUSHDOWN, before)


@pytest.fixture
def filtered(load: Callable[..., DataFrame]) -> Callable[[str], DataFrame]:
    """Function that loads the topic again, and filters it in the source."""
    return lambda condition: load(pushFilters="true").where(condition)


@pytest.mark.long
def test_filters_give_the_rows_that_spark_gives(load: Callable[..., DataFrame]) -> None:
    frame, cases = load(), list(conditions())
    batch = frame.drop("topic", "partition", "offset", "timestamp").toArrow()
    [records] = batch.combine_chunks().to_batches()
    numbered = records.append_column("row", pa.array(range(len(records))))
    for negated in (False, True):
        texts = [f"not ({sql})" if negated else sql for sql, _ in cases]
        marks = frame.selectExpr(*(f"coalesce({sql}, false)" for sql in texts)).toArrow()
        differ = []
        for (sql, one), mark in zip(cases, marks.columns, strict=True):
            each = Not(one) if negated else one
            if not supported(each, records.schema):
                assert None in getattr(one, "value", ()), (sql, negated)
                continue
            found = passing([each], numbered).column("row").to_pylist()
            if found != [n for n, passes in enumerate(mark.to_pylist()) if passes]:
                differ.append((sql, negated))
        assert differ == []
    assert len(cases) > 300


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (("inner", "a"), 1),
        (("nowhere",), 1),
        (("n",), 2**40),
        (("n",), "text"),
        (("dec",), Decimal("1.505")),
    ],
)
def test_other_filters_stay_with_spark(column: tuple[str, ...], value: Any) -> None:
    assert not supported(EqualTo(column, value), SCHEMA)


END_TO_END = [
    *("n = 1", "n > 0 and x > 1D", "s like 'a%' or n = 2", "upper(s) = 'A' and n >= 0"),
    *(
        "x in (double('NaN'), 1.5D)",
        "partition = 1 and offset between 3 and 5",
        "offset in (1, 59)",
    ),
    *("topic <> 't'", "key = X'6B' and n is null", "offset > 9223372036854775806", "partition > 5"),
    *("timestamp > timestamp'2000-01-01'", "timestamp > current_timestamp() + interval 1 hour"),
]


@pytest.mark.parametrize("condition", first_of(END_TO_END, 5))
def test_a_read_with_pushed_filters_has_the_same_rows(
    load: Callable[..., DataFrame], filtered: Callable[[str], DataFrame], condition: str
) -> None:
    expected = load().where(condition).collect()
    assert sorted(map(repr, filtered(condition).collect())) == sorted(map(repr, expected))


WIDENED = [
    ("offset double", "offset < 2.5"),
    ("offset float", "offset < float('infinity')"),
    ("offset decimal(20,1)", "offset < 2.5"),
    ("offset string", "offset = '3'"),
    ("partition double", "partition < 0.5"),
    ("partition bigint", "partition < 5000000000"),
    ("partition string", "partition = '1'"),
    ("timestamp date", "timestamp >= date'2020-01-01'"),
    ("timestamp string", "timestamp > '2020'"),
]
"""Columns of metadata in other types than their own, each with a filter and rows that pass it."""


@pytest.mark.parametrize(("column", "condition"), WIDENED[: by_form(4, len(WIDENED))])
def test_filters_on_metadata_of_another_type_lose_no_rows(
    spark: SparkSession, load: Callable[..., DataFrame], tmp_path: Path, column: str, condition: str
) -> None:
    reader = spark.read.format("strandline").option("subscribe", "t").schema(f"n int, {column}")
    expected, found = (
        reader.option("pushFilters", pushed).load(str(tmp_path / "log")).where(condition).collect()
        for pushed in ("false", "true")
    )
    assert found
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize(
    ("filter_", "kind", "taken"),
    [
        (LessThan(("offset",), 5), pa.int64(), True),
        (Not(In(("offset",), (5, 7, None))), pa.int64(), False),
        (Not(In(("offset",), (5, 7))), pa.int64(), True),
        (In(("partition",), (1, None)), pa.int32(), True),
        (IsNotNull(("offset",)), pa.int64(), True),
        (GreaterThan(("timestamp",), datetime(2024, 5, 1, tzinfo=UTC)), INSTANT, True),
        (EqualTo(("topic",), "t"), pa.string(), True),
        (LessThan(("offset",), 5.0), pa.int64(), False),
        (LessThan(("offset",), True), pa.int64(), False),
        (LessThan(("offset",), 5), pa.int32(), False),
        (In(("partition",), (1, 2.5)), pa.int32(), False),
        (LessThan(("partition",), 5_000_000_000), pa.int32(), False),
        (GreaterThan(("timestamp",), date(2024, 5, 1)), INSTANT, False),
        (EqualTo(("key",), "k"), pa.string(), False),
    ],
)
def test_filters_on_metadata_are_taken_over_only_in_the_columns_own_type(
    filter_: Filter, kind: pa.DataType, taken: bool
) -> None:
    target, expected = pa.schema([(column_of(filter_), kind)]), [filter_] if taken else []
    assert pushable([filter_], target, METADATA) == expected
    assert metadata_filters(expected, target, METADATA) == expected


def test_filters_on_a_topics_own_column_are_taken_over_in_any_type() -> None:
    schema = pa.schema([("offset", pa.float64())])
    half, metadata = LessThan(("offset",), 2.5), METADATA.keys() - {"offset"}
    assert pushable([half], schema, metadata) == [half]
    assert metadata_filters([half], schema, metadata) == []


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_filters_that_are_taken_over_leave_the_plan(
    filtered: Callable[[str], DataFrame],
) -> None:
    assert "Filter (" not in plan_of(filtered("n = 1 and s like 'a%' and x > 0D"))
    assert "upper" in plan_of(filtered("upper(s) = 'A' and n = 1"))
    assert "n = 1" not in plan_of(filtered("upper(s) = 'A' and n = 1"))


def test_without_the_option_frames_of_one_load_do_not_disturb_each_other(
    load: Callable[..., DataFrame],
) -> None:
    """Spark keeps one reader for a loaded frame, with the filters of the latest plan."""
    frame = load()
    both = frame.where("n = 1").unionAll(frame.where("n = 2"))
    assert sorted(row.n for row in both.collect()) == [1] * 20 + [2] * 20
    assert frame.count() == 2 * len(ROWS)


def test_the_option_without_sparks_setting_is_an_error(
    spark: SparkSession, filtered: Callable[[str], DataFrame]
) -> None:
    spark.conf.set(PUSHDOWN, "false")
    with pytest.raises(Exception, match=r"filterPushdown\.enabled"):
        filtered("n = 1").collect()
