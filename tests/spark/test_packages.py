"""A session with missing or mismatched packages or Java fails at once, with a way out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.changelog.errors import MissingDependency
from strandline.framework.spark import session
from strandline.framework.spark.packages import require_columns

pyspark = pytest.importorskip("pyspark")


@pytest.fixture
def without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the session that other tests of this process may have."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _cls: None))


def test_installed_packages_pass() -> None:
    require_columns()


@pytest.mark.parametrize("name", ["pandas", "pyarrow"])
def test_a_missing_package_is_named_with_its_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MissingDependency, match=r"(?i)cannot use .*PACKAGE_NOT_INSTALLED"
    ) as raised:
        session()
    said = str(raised.value)
    assert f"Spark cannot use {name} of {sys.executable}" in said
    assert "strandline[spark]" in said
    assert "kernel" in said


@pytest.mark.parametrize("name", ["pandas", "pyarrow"])
def test_an_old_package_is_named_with_both_versions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip(name)
    monkeypatch.setattr(module, "__version__", "1.5.3")
    with pytest.raises(MissingDependency, match=rf"cannot use {name} .*>= \d+\.\d+.*1\.5\.3"):
        session()


def test_an_old_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(MissingDependency, match=r"needs PySpark 4\.1 or later, and .* has 3\.5\.1"):
        session()


@pytest.mark.parametrize(("said", "version"), [("1.8.0_381", 8), ("11.0.2", 11)])
def test_an_old_java_is_named_before_spark_starts(
    said: str,
    version: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without_a_session: None,
) -> None:
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'java version \"{said}\"' >&2\n")
    java.chmod(0o755)
    _only_this_java(monkeypatch, {"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})
    with pytest.raises(
        MissingDependency, match=rf"Java 17 or later; found .*old \(Java {version}\)"
    ):
        session()


def test_no_java_at_all_is_said_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, without_a_session: None
) -> None:
    _only_this_java(monkeypatch, {"JAVA_HOME": "", "PATH": ""})
    with pytest.raises(MissingDependency, match=r"found none\. Install one and set JAVA_HOME"):
        session()


def _only_this_java(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    missing: Callable[[], None] = lambda: None  # noqa: E731
    monkeypatch.setattr("strandline.framework.spark.java._bundled_java", missing)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
