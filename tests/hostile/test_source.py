"""Data is never executed or imported: no pickle, no marshal, no eval is reachable from the
packages, and modules and classes are looked up only by names from the program's own text."""

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

ALLOWED = {("re", "compile"), ("list", "eval")}
"""Calls that only share a name with a forbidden one: patterns, and Polars' expressions of lists."""

LOOKUPS = {"import_module", "find_spec", "load_module", "exec_module", "spec_from_file_location",
           "entry_points"}  # fmt: skip
"""Functions that find a module, or an object in one, by name."""

NAMED_BY_THE_PROGRAM = {
    # the app that a user names on the command line: `strandline run module:app`
    ("framework/cli/loading.py", "import_module"): 1,
    ("framework/cli/loading.py", "find_spec"): 1,
    # the command line of this package, whose entry point has a constant name
    ("framework/app.py", "entry_points"): 1,
    # the module that has an app which the program passes: found by the app itself, not by a name
    ("framework/spark/workers.py", "sys.modules"): 1,
    # Polars and pandas by their constant names, if the program has imported them
    ("framework/handlers.py", "sys.modules"): 1,
    ("changelog/arrays.py", "sys.modules"): 1,
    # names in tables and tuples of the same module
    ("framework/cli/lazy.py", "import_module"): 1,
    ("strandline/__init__.py", "import_module"): 2,
}
"""Allowed number of lookups by a computed name, by file. A person has judged the origin of the
names."""

RAW = "raw_mode=True"
"""Option without which rocksdict pickles unknown objects, and unpickles what it reads."""


@pytest.fixture(scope="module")
def seen(repository: Path) -> dict[str, dict[str, list[str]]]:
    """Return what each rule finds in each module of the packages, which is parsed once."""
    packages = [
        path
        for name in ("changelog", "statestore", "framework")
        for path in (repository / name).rglob("*.py")
    ]
    packages += [*(repository / "strandline").glob("*.py"), repository / "pyspark_strandline.py"]
    found: dict[str, dict[str, list[str]]] = {rule.__name__: {} for rule in RULES}
    for path in packages:
        nodes = parsed(path.read_text())
        for rule in RULES:
            found[rule.__name__][str(path.relative_to(repository))] = list(rule(nodes))
    return found


def parsed(source: str) -> list[ast.AST]:
    """Return the nodes of a module."""
    return list(ast.walk(ast.parse(source)))


def findings(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield calls in a module that execute data, or could be made to."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
                yield from (m for m in modules if m.partition(".")[0] in BANNED_MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in BANNED_MODULES:
                yield module
            case ast.Call(func=func, keywords=keywords):
                yield from _of_call(func, keywords)


def lookups(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield lookups in modules by a computed name."""
    for node in nodes:
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
        case ast.Attribute(value=ast.Attribute(attr=owner), attr=name) if (owner, name) in ALLOWED:
            pass
        case ast.Attribute(attr=name) if name in BANNED_CALLS:
            yield name
    yield from (k.arg for k in keywords if k.arg in BANNED_ARGUMENTS)


def unsafe_stores(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield calls that open a RocksDB, or write to one, for values that it may unpickle."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="Options" | "WriteBatch")):
                if RAW not in (text := ast.unparse(node)):
                    yield text


RULES = (findings, lookups, unsafe_stores)


def test_no_module_executes_data(seen: dict[str, dict[str, list[str]]]) -> None:
    found = seen["findings"]
    assert len(found) > 100
    assert {path: names for path, names in found.items() if names} == {}


def test_modules_are_looked_up_by_names_of_the_program_only(
    seen: dict[str, dict[str, list[str]]],
) -> None:
    found = Counter((path, name) for path, names in seen["lookups"].items() for name in names)
    assert found == NAMED_BY_THE_PROGRAM


def test_every_rocksdb_is_opened_for_bytes(seen: dict[str, dict[str, list[str]]]) -> None:
    assert {path: calls for path, calls in seen["unsafe_stores"].items() if calls} == {}
    assert list(unsafe_stores(parsed("rocksdict.WriteBatch()")))


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
def test_a_lookup_by_a_computed_name_is_found(source: str) -> None:
    assert list(lookups(parsed(source)))


def test_a_lookup_by_a_literal_name_is_allowed() -> None:
    assert not list(lookups(parsed("importlib.util.find_spec('pyspark')")))


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
def test_a_call_that_executes_data_is_found(source: str) -> None:
    assert list(findings(parsed(source)))


def test_patterns_may_be_compiled() -> None:
    assert not list(findings(parsed("import re\nre.compile('x')")))
