"""A session has the data source registered exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[type[Any]]:
    """Data sources that are registered from here on."""
    from pyspark.sql.datasource import DataSourceRegistration

    register = DataSourceRegistration.register
    seen: list[type[Any]] = []

    def noted(self: DataSourceRegistration, source: type[Any]) -> None:
        seen.append(source)
        register(self, source)

    monkeypatch.setattr(DataSourceRegistration, "register", noted)
    return seen


def test_a_source_found_by_spark_itself_is_not_replaced(
    spark: SparkSession, registered: list[type[Any]]
) -> None:
    from strandline.framework.spark import session

    assert session() is spark
    assert registered == []


def test_a_source_not_found_by_spark_is_registered_once(
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
