"""The app of the guide's five minutes, and the task that replaces it."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from strandline import changelog
from tests.faust.faust_workers import FaustProcess, eventually, in_folder, latest

LOG = "/tmp/orders/log"
CHANGELOG = "orders-totals-changelog"
PAGES = ("faust.md", "faust-tables.md", "from-other-frameworks.md")


def blocks(repository: Path, folder: Path) -> list[str]:
    """Return the blocks of the guide that are for an environment with Faust."""
    guide = repository / "docs" / "guide"
    pages = "\n".join((guide / name).read_text() for name in PAGES)
    found = re.findall(r"^( *)```python faust\n(.*?)^\1```$", pages, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code).replace(LOG, str(folder / "log")) for _, code in found]


def run(folder: Path, *command: str) -> str:
    """Run a Python command in the folder of the app; return its output."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def send(folder: Path, price: float) -> None:
    """Send an order as the guide does."""
    order = f'{{"city": "york", "price": {price}}}'
    run(folder, "-m", "faust", "-A", "orders", "send", "orders", order)


@pytest.mark.slow
def test_the_five_minutes_and_the_replacement(repository: Path, tmp_path: Path) -> None:
    [app] = [code for code in blocks(repository, tmp_path) if "stream.group_by" in code]
    [task] = [code for code in blocks(repository, tmp_path) if "app.repartition" in code]
    (tmp_path / "orders.py").write_text(app)
    (tmp_path / "replaced.py").write_text(task)
    with changelog.open(tmp_path / "log") as log:
        for number, price in enumerate((3.5, 2.0), 1):
            worker = FaustProcess("orders", in_folder(tmp_path), tmp_path)
            try:
                send(tmp_path, price)
                expected = {"york": 3.5 if number == 1 else 5.5}
                eventually(lambda expected=expected: latest(log, CHANGELOG) == expected)
            finally:
                worker.kill()
        assert run(tmp_path, "replaced.py") == "True\n"
