"""The same Spark tests on the oldest supported Spark, in an environment of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

OLDEST = "4.1.1"


@pytest.fixture(scope="session")
def oldest_python(repository: Path) -> Path:
    """Interpreter with the oldest Spark. Created once, and again when pyproject.toml changes."""
    folder = repository / ".cache" / f"spark-{OLDEST}"
    stamp = folder / "made-from"
    wanted = hashlib.sha256((repository / "pyproject.toml").read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        command([sys.executable, "-m", "venv", "--clear", str(folder)])
        needs = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis"]
        install = ["install", "--quiet", "--editable", f"{repository}[spark]"]
        command([str(python), "-m", "pip", *install, f"pyspark=={OLDEST}", *needs])
        stamp.write_text(wanted)
    return python


@pytest.mark.timeout(1200)
def test_the_oldest_supported_spark_passes_the_same_tests(
    oldest_python: Path, repository: Path
) -> None:
    tests = [
        "tests/spark/test_spark.py",
        "tests/spark/test_spark_ranges.py",
        "tests/spark/test_sink.py",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    said = command([str(oldest_python), "-m", "pytest", *tests], cwd=repository)
    assert " passed" in said


def command(arguments: list[str], cwd: Path | None = None) -> str:
    """Run a program that must succeed. Return its standard output."""
    # The environment variables set by this process's Spark are not for another version.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTEST_", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout
