"""Pages name the limits of a served log as they are."""

from __future__ import annotations

import dataclasses
import re

import pytest

from strandline.changelog.flight.limits import MAX_REMOTE_APPEND_BYTES, ListenerLimits
from tests.docs.page import ROOT

UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
DEFAULTS = {
    field.metadata["variable"]: field.default for field in dataclasses.fields(ListenerLimits)
}
ROW = re.compile(r"^\| (.+?) \| ([\d,]+) ?(s|KiB|MiB|GiB|) \|(.*)\|$", re.MULTILINE)
VARIABLE = re.compile(r"`(STRANDLINE_[A-Z_]+)`")


def limits_on(page: str) -> dict[str, float]:
    """Return the limits in tables of a page by variable, or by name if there is no variable."""
    found = {}
    for name, number, unit, change in ROW.findall((ROOT / "docs" / page).read_text()):
        variable = VARIABLE.search(change)
        found[variable[1] if variable else name] = float(number.replace(",", "")) * UNITS[unit]
    return found


@pytest.mark.parametrize("page", ["security.md", "guide/network.md"])
def test_a_page_names_the_default_of_each_limit(page: str) -> None:
    found = limits_on(page)
    assert found.pop("one append call") == MAX_REMOTE_APPEND_BYTES
    known = {name: limit for name, limit in found.items() if name.startswith("STRANDLINE_")}
    assert len(known) >= 6
    assert known == {name: DEFAULTS[name] for name in known}


def test_the_page_on_security_names_every_limit() -> None:
    assert set(DEFAULTS) - set(limits_on("security.md")) == set()
