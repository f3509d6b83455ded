"""A session knows the format, and is not told of it twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[type[Any]]:
    """The sources that are registered from here on."""
    from pyspark.sql.datasource import DataSourceRegistration

    register = DataSourceRegistration.register
    seen: list[type[Any]] = []

    def noted(self: DataSourceRegistration, source: type[Any]) -> None:
        seen.append(source)
        register(self, source)

    monkeypatch.setattr(DataSourceRegistration, "register", noted)
    return seen


def test_what_spark_found_by_itself_is_not_replaced(
    spark: SparkSession, registered: list[type[Any]]
) -> None:
    from strandline.framework.spark import session

    assert session() is spark
    assert registered == []


def test_what_spark_did_not_find_is_registered_once(
    spark: SparkSession,
    registered: list[type[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from strandline.framework.spark import session
    from strandline.framework.spark.source import StrandlineSource

    monkeypatch.setattr(StrandlineSource, "name", classmethod(lambda _cls: "found-by-nobody"))
    session()
    session()
    assert registered == [StrandlineSource]
