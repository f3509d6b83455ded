"""Nothing that is read is run: no pickle, no marshal, no eval is reachable from the packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BANNED_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle",
                  "marshal", "shelve", "dbm", "yaml", "code", "codeop"}  # fmt: skip
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "read_pickle", "to_pickle", "Unpickler",
                "unsafe_load"}  # fmt: skip
BANNED_ARGUMENTS = {"allow_pickle", "shell"}

ALLOWED = {("re", "compile")}
"""Calls that only share a name."""

RAW = "raw_mode=True"
"""Without it rocksdict pickles what it does not know, and unpickles what it finds."""


def packages(repository: Path) -> list[Path]:
    found = [
        p
        for name in ("changelog", "statestore", "framework")
        for p in (repository / name).rglob("*.py")
    ]
    return [*found, repository / "strandline.py", repository / "pyspark_strandline.py"]


def findings(tree: ast.AST) -> Iterator[str]:
    """What of it would run, or could be made to run, what it reads."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
                yield from (m for m in modules if m.partition(".")[0] in BANNED_MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in BANNED_MODULES:
                yield module
            case ast.Call(func=func, keywords=keywords):
                yield from _of_call(func, keywords)


def _of_call(func: ast.expr, keywords: list[ast.keyword]) -> Iterator[str]:
    match func:
        case ast.Name(id=name) if name in BANNED_CALLS:
            yield name
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in ALLOWED:
            pass
        case ast.Attribute(attr=name) if name in BANNED_CALLS:
            yield name
    yield from (k.arg for k in keywords if k.arg in BANNED_ARGUMENTS)


def test_no_module_runs_what_it_reads(repository: Path) -> None:
    found = {
        str(path.relative_to(repository)): list(findings(ast.parse(path.read_text())))
        for path in packages(repository)
    }
    assert len(found) > 100
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "import a.b, shelve as s",
        "eval('1')",
        "builtins.exec(x)",
        "np.load(f, allow_pickle=True)",
        "subprocess.run(x, shell=True)",
    ],
)
def test_that_would_be_seen(source: str) -> None:
    assert list(findings(ast.parse(source)))


def test_patterns_may_be_compiled() -> None:
    assert not list(findings(ast.parse("import re\nre.compile('x')")))


def test_every_rocksdb_is_opened_for_bytes(repository: Path) -> None:
    for path in packages(repository):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="Options" | "WriteBatch" as name)):
                    assert RAW in ast.unparse(node), f"{path}: {name} without {RAW}"
