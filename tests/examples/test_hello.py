"""The hello-world of the README, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_hello(repository: Path, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    environment.pop("STRANDLINE_LOG", None)
    done = subprocess.run(
        [sys.executable, str(repository / "examples/hello.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_counts_words_and_continues_counting(repository: Path, tmp_path: Path) -> None:
    assert run_hello(repository, tmp_path) == "{'sea': 1, 'shore': 1, 'strandline': 1, 'the': 3}\n"
    assert run_hello(repository, tmp_path) == "{'sea': 2, 'shore': 2, 'strandline': 2, 'the': 6}\n"


def test_the_example_is_short_and_in_the_readme(repository: Path) -> None:
    source = (repository / "examples/hello.py").read_text()
    code = [line for line in source.splitlines() if line.strip()]
    assert len(code) < 15
    readme = (repository / "README.md").read_text()
    shown = [line for line in readme.splitlines() if line.strip()]
    assert "\n".join(code[1:]) in "\n".join(shown)
