"""The recipes of the page on joins find each pair once, in whatever order records come."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.framework.testing import CRASH, TestDriver
from tests.docs.page import ROOT, blocks_of

PAGE = ROOT / "docs/guide/joins.md"
START = 1_777_593_600_000
MINUTE = 60_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names of the page's first two examples, without the records they append."""
    folder = tmp_path_factory.mktemp("joins")
    code = [block.text for block in blocks_of(PAGE) if block.kind == "python"]
    found: dict[str, Any] = {}
    for text, end in zip(code[:2], ("orders.append(", "buys.append("), strict=True):
        exec(text[: text.index(end)].replace("data/shop", str(folder / "log")), found)
    return found


Moment = st.integers(0, 59)
Events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["views", "buys"]), st.sampled_from("ab"), Moment),
        st.sampled_from(["stop", "crash"]),
    ),
    max_size=40,
)


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=Events)
def test_each_pair_within_the_time_is_sent_once(page: dict[str, Any], events: list[Any]) -> None:
    driver = TestDriver(page["app"], now_ms=START)
    seen: dict[str, list[tuple[str, int]]] = {"views": [], "buys": []}
    waiting: list[Any] = []
    for event in events:
        if event == "stop":
            driver.run(waiting)
            waiting = []
        elif event == "crash":
            waiting.append(CRASH)
        else:
            name, user, minute = event
            at = START + minute * MINUTE
            waiting.append((page[name], user, "shoes" if name == "views" else 1.0, at))
            seen[name].append((user, at))
    driver.run(waiting)
    expected = Counter(
        (user, bought - viewed)
        for user, viewed in seen["views"]
        for buyer, bought in seen["buys"]
        if user == buyer and 0 <= bought - viewed < 30 * MINUTE
    )
    rows = driver.output(page["pairs"])
    assert Counter((row.key, row.value["ms"]) for row in rows) == expected
