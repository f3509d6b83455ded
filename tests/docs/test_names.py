"""Names in backticks, in pages and in messages, are names of something that exists."""

from __future__ import annotations

import ast
import builtins
import itertools
import keyword
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = {
    *("from_avro", "from_protobuf"),  # Spark's
    *("AdminClient", "list_offsets", "rd_kafka_topic_partition_list_query_leaders_async"),
    *("topic_replication_factor", "left_join"),  # Faust's
    *("dd", "pread"),  # the system's
    *("Args", "c0"),  # a heading of docstrings; a byte
    "Topic.validate",  # Kafka's
}
"""Names of other software, and no names at all."""
NAME = re.compile(r"[A-Za-z_][\w.]*(\([^)]*\))?")
SOURCE = ("changelog/", "statestore/", "framework/")
PLAIN_BASES = {"Protocol", "Generic", "NamedTuple", "ABC"}
"""Bases from which a class has no members of interest."""
NAMING = ("id", "attr", "name", "arg", "rest")
"""Fields of nodes that hold an identifier."""
SETTINGS = ("Makefile", "pyproject.toml", ".github/workflows/ci.yml")


def tracked(pattern: str) -> Iterator[Path]:
    """Yield the files of the repository that match, without links."""
    command = ["git", "ls-files", "--", pattern]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / line for line in done.stdout.splitlines())
    yield from (path for path in paths if path.is_file() and not path.is_symlink())


class Names(NamedTuple):
    """Names and texts of all modules, each parsed once."""

    known: set[str]
    """Identifiers of every module, and words of its strings of one line."""
    classes: dict[str, tuple[set[str], set[str]]]
    """Names that each class of the source defines, and names of its bases."""
    strings: dict[str, str]
    """Strings of each module of the source, docstrings among them."""
    messages: dict[str, str]
    """Strings of each module of the source within `raise` and within calls of a logger."""


@pytest.fixture(scope="module")
def names() -> Names:
    found = Names(set(), {}, {}, {})
    for path in tracked("*.py"):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        if path != Path(__file__).resolve():  # it has names that do not exist
            found.known.update(itertools.chain.from_iterable(map(identifiers, nodes)))
        if name.startswith(SOURCE):
            found.strings[name] = "\n".join(strings(nodes))
            found.messages[name] = "\n".join(messages(nodes))
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
                    found.classes[node.name] = set(names_in(node)), bases
    return found


@pytest.fixture(scope="module")
def known(names: Names) -> set[str]:
    """Return every identifier of the source, and the names of its files and settings."""
    found = {*dir(builtins), *keyword.kwlist, *FOREIGN, *names.known}
    for path in tracked("*"):
        found |= {path.stem, *path.relative_to(ROOT).parts}
    for name in SETTINGS:
        found |= set(re.findall(r"[\w-]+", (ROOT / name).read_text()))
    return found


def identifiers(node: ast.AST) -> Iterator[str]:
    """Yield the names in a node itself, and the words of a string of one line."""
    match node:
        case ast.Constant(value=str(text)) if "\n" not in text:
            yield from re.findall(r"\w+", text)
        case ast.Constant(value=bytes(data)):
            yield from re.findall(r"\w+", data.decode("latin-1"))
        case ast.alias(name=name, asname=other):
            yield from (*name.split("."), other or "")
        case ast.ImportFrom(module=str(name)):
            yield from name.split(".")
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.MatchClass(kwd_attrs=names):
            yield from names
        case _:
            yield from (
                word for field in NAMING if isinstance(word := getattr(node, field, None), str)
            )


def quoted_names(text: str) -> set[str]:
    """Return the names in backticks."""
    quoted = (found[1] for found in re.finditer(r"`([^`\n]+)`", text))
    return {name for name in quoted if NAME.fullmatch(name)}


def unknown(text: str, known: set[str]) -> set[str]:
    """Return the names in backticks of which some part is not known."""
    return {name for name in quoted_names(text) if not known >= set(parts_of(name))}


def parts_of(name: str) -> list[str]:
    """Return the parts of a dotted name, without the arguments of a call."""
    return [part for part in name.partition("(")[0].split(".") if part]


@pytest.fixture(scope="module")
def members(names: Names) -> dict[str, set[str]]:
    """Return the members of each class of the source, inherited ones included.

    Classes that inherit from a class of other software are left out.
    """

    def inherited(name: str) -> set[str] | None:
        own, bases = names.classes[name]
        found = set(own)
        for base in bases - PLAIN_BASES:
            more = inherited(base) if base in names.classes else None
            if more is None:
                return None
            found |= more
        return found

    complete = {name: inherited(name) for name in names.classes}
    return {name: found for name, found in complete.items() if found is not None}


def names_in(declared: ast.ClassDef) -> Iterator[str]:
    """Yield the names that a class and its methods define."""
    for node in ast.walk(declared):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def without_member(text: str, members: dict[str, set[str]]) -> set[str]:
    """Return the names in backticks of a class and a member that it does not have."""
    found = set()
    for name in quoted_names(text):
        parts = parts_of(name)
        pairs = itertools.pairwise(parts)
        if any(one in members and other not in members[one] for one, other in pairs):
            found.add(name)
    return found


def test_pages_name_only_what_exists(known: set[str]) -> None:
    wrong = {name: unknown(text, known) for name, text in pages().items()}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_pages_and_docstrings_name_only_members_that_classes_have(
    names: Names, members: dict[str, set[str]]
) -> None:
    texts = pages() | names.strings
    wrong = {name: without_member(text, members) for name, text in texts.items()}
    assert {name: found - FOREIGN for name, found in wrong.items() if found - FOREIGN} == {}


def pages() -> dict[str, str]:
    """Return the text of each page by its path, without blocks of code."""
    current = (path for path in tracked("*.md") if path.name != "CHANGELOG.md")  # it has old names
    return {
        str(path.relative_to(ROOT)): re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for path in current
    }


def strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the strings among some nodes, docstrings included."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def messages(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the texts within `raise` and within calls of a logger."""
    for node in nodes:
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")
        if isinstance(node, ast.Raise) or is_log:
            yield from strings(ast.walk(node))


def test_messages_name_only_what_exists(names: Names, known: set[str]) -> None:
    wrong = {name: unknown(text, known) for name, text in names.messages.items()}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_a_name_that_does_not_exist_is_found(known: set[str]) -> None:
    text = "call `no_such_function(1)` or `App.run`, see `app.no_such_method`"
    assert unknown(text, known) == {"no_such_function(1)", "app.no_such_method"}


def test_a_member_that_does_not_exist_is_found(members: dict[str, set[str]]) -> None:
    text = "`Partition.log_end`, `Partition.no_such_end`, `sl.App.no_such_call()`, `App.run`"
    assert without_member(text, members) == {"Partition.no_such_end", "sl.App.no_such_call()"}
