"""Names in backticks, in pages and in messages, are names of something that exists."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = {
    *("from_avro", "from_protobuf"),  # Spark's
    *("AdminClient", "list_offsets", "rd_kafka_topic_partition_list_query_leaders_async"),
    *("dd", "pread"),  # the system's
    *("Args", "c0"),  # a heading of docstrings; a byte
}
"""Names of other software, and no names at all."""
NAME = re.compile(r"[A-Za-z_][\w.]*(\([^)]*\))?")
SETTINGS = ("Makefile", "pyproject.toml", ".github/workflows/ci.yml")


def tracked(pattern: str) -> Iterator[Path]:
    """Yield the files of the repository that match, without links."""
    command = ["git", "ls-files", "--", pattern]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / line for line in done.stdout.splitlines())
    yield from (path for path in paths if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Return every identifier of the source, and the names of its files and settings."""
    found = {*dir(builtins), *keyword.kwlist, *FOREIGN}
    for path in tracked("*"):
        found |= {path.stem, *path.relative_to(ROOT).parts}
    for path in tracked("*.py"):
        if path == Path(__file__).resolve():
            continue  # it has names that do not exist
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.NAME:
                found.add(token.string)
            elif token.type == tokenize.STRING and "\n" not in token.string:
                found |= set(re.findall(r"\w+", token.string))
    for name in SETTINGS:
        found |= set(re.findall(r"[\w-]+", (ROOT / name).read_text()))
    return found


def unknown(text: str, known: set[str]) -> set[str]:
    """Return the names in backticks of which some part is not known."""
    quoted = (found[1] for found in re.finditer(r"`([^`\n]+)`", text))
    names = {name for name in quoted if NAME.fullmatch(name)}
    return {
        name for name in names if not known >= set(filter(None, name.partition("(")[0].split(".")))
    }


def test_pages_name_only_what_exists(known: set[str]) -> None:
    current = (path for path in tracked("*.md") if path.name != "CHANGELOG.md")  # it has old names
    pages = {path: re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL) for path in current}
    wrong = {str(path.relative_to(ROOT)): unknown(text, known) for path, text in pages.items()}
    assert {path: names for path, names in wrong.items() if names} == {}


def messages(path: Path) -> Iterator[str]:
    """Yield the texts within `raise` and within calls of a logger."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")
        if isinstance(node, ast.Raise) or is_log:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.value


def test_messages_name_only_what_exists(known: set[str]) -> None:
    wrong = {
        str(path.relative_to(ROOT)): names
        for top in ("changelog", "statestore", "framework")
        for path in tracked(f"{top}/*.py")
        if (names := unknown("\n".join(messages(path)), known))
    }
    assert wrong == {}


def test_a_name_that_does_not_exist_is_found(known: set[str]) -> None:
    text = "call `no_such_function(1)` or `App.run`, see `app.no_such_method`"
    assert unknown(text, known) == {"no_such_function(1)", "app.no_such_method"}
