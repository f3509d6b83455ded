"""docs/reference.md names every public object with its file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import strandline
from strandline import changelog
from tests.docs.page import ROOT

REFERENCE = ROOT / "docs/reference.md"


def rows(prefix: str) -> dict[str, Path]:
    """Return the names of a table, each with the file that its row links."""
    row = re.compile(rf"^\| `{prefix}\.(\w+)` \|.*\]\(([^)]+)\) \|$", re.MULTILINE)
    return {
        name: (REFERENCE.parent / target).resolve()
        for name, target in row.findall(REFERENCE.read_text())
    }


@pytest.mark.parametrize(("prefix", "module"), [("sl", strandline), ("changelog", changelog)])
def test_every_public_name_is_listed_with_its_file(prefix: str, module: ModuleType) -> None:
    found = rows(prefix)
    assert set(found) == set(module.__all__)
    for name, file in found.items():
        assert file == Path(str(inspect.getsourcefile(getattr(module, name)))).resolve(), name


def public_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of a module, and those of its classes, that users may call, by name.

    Classes document their own arguments, or their fields.
    """
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and found.__module__.startswith("strandline"):
            for member, function in vars(found).items():
                function = getattr(function, "__func__", function)  # class and static methods
                if inspect.isfunction(function) and not member.startswith("_"):
                    yield f"{name}.{member}", function


def undocumented(function: Callable[..., Any]) -> list[str]:
    """Return the arguments of a function that its docstring does not list."""
    text = inspect.getdoc(function) or ""
    arguments = inspect.signature(function).parameters.values()
    return [
        argument.name
        for argument in arguments
        if argument.name != "self"
        and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        and not re.search(rf"^\s+{argument.name}( \(.*\))?:", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("module", [strandline, strandline.testing, changelog])
def test_every_argument_of_a_public_function_is_documented(module: ModuleType) -> None:
    functions = dict(public_functions(module))
    assert functions
    missing = {name: undocumented(function) for name, function in functions.items()}
    assert {name: arguments for name, arguments in missing.items() if arguments} == {}


def test_an_argument_without_documentation_is_found() -> None:
    def documented(one: int, *, other: int) -> None:
        """Do nothing.

        Args:
            one: A number.
        """

    assert undocumented(documented) == ["other"]


def test_every_public_method_of_an_app_is_listed_with_its_parameters() -> None:
    page = REFERENCE.read_text()
    for name, method in vars(strandline.App).items():
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(method, property):
            assert name == "name" or f"`app.{name}`" in page, name
            continue
        call = "`App({})`" if name == "__init__" else f"`app.{name}({{}})`"
        shown = re.search(re.escape(call).replace(r"\{\}", r"([^`]*)"), page)
        assert shown is not None, name
        parameters = list(inspect.signature(method).parameters.values())[1:]
        settings = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.name == "until"]
        for setting in settings:
            assert f"{setting}=" in shown[1], f"app.{name}: {setting}"
