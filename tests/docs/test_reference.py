"""docs/reference.md names every public object with its file."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

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
