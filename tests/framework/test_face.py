"""`import strandline`: light and complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import strandline as sl

ROOT = Path(__file__).parents[2]
HEAVY = ["polars", "pyarrow.flight", "pyspark", "pandas", "typer", "rich", "rocksdict"]


def python(code: str, *path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PYTHONPATH": ":".join(map(str, path))},
        check=False,
    )


def test_importing_starts_no_thread_touches_no_file_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, threading, strandline\n"
        f"print(threading.active_count(), [m for m in {HEAVY} if m in sys.modules])"
    )
    result = python(code, ROOT, cwd=tmp_path)
    assert result.stdout.strip() == "1 []", result.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_exported_name_exists() -> None:
    assert [name for name in sl.__all__ if not hasattr(sl, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sl.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.long
@pytest.mark.parametrize(
    "checker", [["mypy", "--strict"], ["pyright"]], ids=lambda checker: checker[0]
)
def test_type_checkers_understand_an_app(checker: list[str]) -> None:
    program = Path(sys.executable).with_name(checker[0])
    if not program.exists():
        pytest.skip(f"{checker[0]} is not installed")
    sample = ROOT / "tests" / "typing" / "sample_app.py"
    result = subprocess.run(
        [program, *checker[1:], sample], capture_output=True, text=True, cwd=ROOT, check=False
    )
    complaints = [
        line for line in result.stdout.splitlines() if "sample_app" in line and "error" in line
    ]
    assert complaints == []
    assert result.stdout
