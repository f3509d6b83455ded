"""Nothing that is read is run, or imported: no pickle, no marshal, no eval is reachable from the packages, and no
module or class is looked up by a name that the program does not have in its own text."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

BANNED_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle",
                  "marshal", "pydoc", "runpy", "pkgutil", "imp", "shelve", "dbm", "yaml", "code", "codeop"}  # fmt: skip
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "read_pickle", "to_pickle", "Unpickler",
                "unsafe_load"}  # fmt: skip
BANNED_ARGUMENTS = {"allow_pickle", "shell"}

ALLOWED = {("re", "compile")}
"""Calls that only share a name."""

LOOKUPS = {"import_module", "find_spec", "load_module", "exec_module", "spec_from_file_location",
           "entry_points"}  # fmt: skip
"""Calls that find a module or what is in one, by its name."""

NAMED_BY_THE_PROGRAM = {
    # The app that a user names on the command line: `strandline run module:app`.
    ("framework/cli/loading.py", "import_module"): 1,
    ("framework/cli/loading.py", "find_spec"): 1,
    # Names that stand in tables and tuples of the same module.
    ("strandline/__init__.py", "import_module"): 2,
}
"""How often a name that is computed may be looked up where: whose it is, was judged by a person."""

RAW = "raw_mode=True"
"""Without it rocksdict pickles what it does not know, and unpickles what it finds."""


def packages(repository: Path) -> list[Path]:
    found = [
        p
        for name in ("changelog", "statestore", "framework")
        for p in (repository / name).rglob("*.py")
    ]
    return [*found, *(repository / "strandline").glob("*.py"), repository / "pyspark_strandline.py"]


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


def lookups(tree: ast.AST) -> Iterator[str]:
    """Where of it something is looked up in modules by a name that is computed."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments):
                is_constant = bool(arguments) and all(
                    isinstance(a, ast.Constant) for a in arguments
                )
                if name in LOOKUPS and not is_constant:
                    yield name
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                yield "sys.modules"
            case ast.ImportFrom(module="sys", names=names):
                yield from ("sys.modules" for alias in names if alias.name == "modules")
            case ast.ImportFrom(module="importlib", names=names):
                yield from (f"{a.name} as {a.asname}" for a in names if a.asname is not None)


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


def test_nothing_is_looked_up_by_a_name_from_elsewhere(repository: Path) -> None:
    found = Counter(
        (str(path.relative_to(repository)), name)
        for path in packages(repository)
        for name in lookups(ast.parse(path.read_text()))
    )
    assert found == NAMED_BY_THE_PROGRAM


@pytest.mark.parametrize(
    "source",
    [
        "importlib.import_module(name)",
        "importlib.import_module()",
        "import_module(f'{a}.b')",
        "sys.modules[name]",
        "sys.modules.get('x')",
        "from sys import modules",
        "from importlib import import_module as load",
    ],
)
def test_that_lookup_would_be_seen(source: str) -> None:
    assert list(lookups(ast.parse(source)))


def test_a_name_in_the_program_s_text_may_be_looked_up() -> None:
    assert not list(lookups(ast.parse("importlib.util.find_spec('pyspark')")))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pydoc import locate",
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
