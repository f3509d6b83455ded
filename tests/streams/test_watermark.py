"""A watermark advances record by record, and that of several sources is the least of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strandline.framework.streams.watermark import (
    NO_WATERMARK,
    SourceWatermarks,
    advanced,
    running,
)


@given(
    st.lists(st.integers(-(10**13), 10**13) | st.integers(-(2**63), 2**63 - 1)),
    st.just(NO_WATERMARK) | st.integers(-(10**13), 10**13),
    st.integers(0, 10**10),
    st.integers(0, 20),
)
def test_a_watermark_is_the_greatest_earlier_time_less_the_delay(
    times: list[int], before: int, delay: int, place: int
) -> None:
    found = running(np.array(times, dtype=np.int64), before, delay).tolist()
    mark = before
    for time, at in zip(times, found, strict=True):
        assert at == mark
        mark = max(mark, time - delay)
    head, tail = (np.array(part, dtype=np.int64) for part in (times[:place], times[place:]))
    between = advanced(head, before, delay)
    assert [*running(head, before, delay), *running(tail, between, delay)] == found
    assert advanced(tail, between, delay) == mark


def test_the_common_watermark_is_the_least_of_the_sources_that_are_not_idle() -> None:
    marks = SourceWatermarks(["a", "b"])
    assert marks.advance("a", 100) == NO_WATERMARK
    assert marks.advance("b", 40) == 40
    assert marks.set_idle("b", idle=True) == 100
    assert marks.advance("b", 50) == 100  # it never goes back
    assert marks.advance("a", 200) == 100
    assert marks.advance("b", 150) == 150
    assert marks.of("a") == 200


def test_the_watermark_stays_while_all_sources_are_idle() -> None:
    marks = SourceWatermarks(["a"])
    assert marks.set_idle("a", idle=True) == NO_WATERMARK
    assert marks.advance("a", 7) == 7
    assert marks.set_idle("a", idle=True) == 7


def test_a_restart_begins_with_the_watermarks_of_the_commit() -> None:
    marks = SourceWatermarks(["a", "b"])
    marks.advance("a", 10)
    marks.advance("b", 20)
    again = SourceWatermarks(["a", "b", "c"])
    again.restored(*marks.state())
    assert (again.value, again.of("b"), again.of("c")) == (10, 20, NO_WATERMARK)


def test_a_source_that_lags_after_a_restart_does_not_move_the_watermark_back() -> None:
    marks = SourceWatermarks(["a"])
    marks.restored(50, {"a": 50})
    assert marks.advance("a", 30) == 50
