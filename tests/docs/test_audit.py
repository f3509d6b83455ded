"""`make audit` looks up every version that the project pins."""

from __future__ import annotations

from tests.docs.page import ROOT

NOT_PINNED = {"faust-suite.txt"}
"""Ranges of old versions, the source of faust-suite.lock."""


def test_every_file_of_pinned_versions_is_audited() -> None:
    _, _, rest = (ROOT / "Makefile").read_text().partition("\naudit: ")
    recipe, _, _ = rest.partition("\n\n")
    assert "pip-audit" in recipe
    pinned = {path.name for path in (ROOT / "requirements").iterdir()} - NOT_PINNED
    assert {name for name in pinned if f"requirements/{name}" not in recipe} == set()
