"""`make audit` looks up every version that the project pins."""

from __future__ import annotations

from tests.docs.page import ROOT

REQUIREMENTS = ROOT / "requirements"


def test_every_file_of_pinned_versions_is_audited() -> None:
    _, _, rest = (ROOT / "Makefile").read_text().partition("\naudit: ")
    recipe, _, _ = rest.partition("\n\n")
    assert "requirements/*.lock" in recipe
    assert "--require-hashes" in recipe
    others = [path for path in REQUIREMENTS.iterdir() if path.suffix != ".lock"]
    assert [path.name for path in others if not path.with_suffix(".lock").exists()] == []
