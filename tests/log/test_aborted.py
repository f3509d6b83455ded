"""The index of aborted transactions: its answers, and the growth of its work."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from strandline.changelog.embedded.aborted import BLOCK_TRANSACTIONS, AbortedTransactions
from strandline.changelog.producer_state import EndedTransaction


def history(count: int, producers: int, seed: int) -> list[EndedTransaction]:
    """Return overlapping transactions, but never two of one producer, in the order of their
    ends."""
    chance, ended, opened = Random(seed), list[EndedTransaction](), dict[int, int]()
    offset = 0
    while len(ended) < count:
        offset += chance.randint(1, 3)
        producer = chance.randrange(producers)
        if producer in opened:
            ended.append(EndedTransaction(producer, opened.pop(producer), offset))
        else:
            opened[producer] = offset
    return ended


@pytest.mark.parametrize(
    "count", [0, 1, BLOCK_TRANSACTIONS, BLOCK_TRANSACTIONS + 1, 4 * BLOCK_TRANSACTIONS + 7]
)
@pytest.mark.parametrize("producers", [1, 5, 300])
@pytest.mark.parametrize("in_order", [True, False])
def test_the_index_finds_the_same_transactions_as_a_scan_of_all(
    count: int, producers: int, *, in_order: bool
) -> None:
    ended, chance = history(count, producers, seed=count + producers), Random(7)
    end = ended[-1].marker_offset + 2 if ended else 2
    given = ended if in_order else chance.sample(ended, len(ended))
    index = AbortedTransactions()
    for one in [*given, *chance.sample(given, len(given) // 3)]:
        index.add(one)
    assert list(index) == ended
    assert list(AbortedTransactions(given)) == ended
    for _ in range(100):
        first, second = sorted(chance.randrange(end) for _ in range(2))
        within = [one for one in ended if one.marker_offset >= first and one.first_offset < second]
        assert list(index.among(first, second)) == within
        assert index.ending_in(first, second) == [
            one for one in ended if first <= one.marker_offset < second
        ]
        producer = chance.randrange(producers)
        markers = [
            one.marker_offset
            for one in ended
            if one.producer_id == producer and one.first_offset <= first < one.marker_offset
        ]
        assert index.marker_of(producer, first) == (markers[0] if markers else None)
        assert list(index.since(first)) == [one for one in ended if one.marker_offset >= first]


def counting(name: str) -> Any:
    """Return a method of int that counts its calls."""
    compare = getattr(int, name)

    def method(self: int, other: object) -> Any:
        Counted.comparisons += 1
        return compare(self, other)

    return method


class Counted(int):
    """An offset that counts comparisons."""

    comparisons = 0
    __eq__ = counting("__eq__")
    __ne__ = counting("__ne__")
    __lt__ = counting("__lt__")
    __le__ = counting("__le__")
    __gt__ = counting("__gt__")
    __ge__ = counting("__ge__")
    __hash__ = int.__hash__


def counted(count: int, producers: int) -> list[EndedTransaction]:
    return [
        EndedTransaction(one.producer_id, Counted(one.first_offset), Counted(one.marker_offset))
        for one in history(count, producers, seed=1)
    ]


def adding(count: int, producers: int) -> None:
    index = AbortedTransactions()
    for one in counted(count, producers):
        index.add(one)


def making(count: int, producers: int) -> None:
    AbortedTransactions(counted(count, producers))


def reading(count: int, producers: int) -> None:
    """Query the index for each short range of the log, as a reader of the whole log does."""
    ended = counted(count, producers)
    index = AbortedTransactions(ended)
    for offset in range(0, int(ended[-1].marker_offset), 20):
        index.among(offset, offset + 20)


@pytest.mark.parametrize("work", [adding, making, reading])
@pytest.mark.parametrize("producers", [1, 50])
def test_the_work_grows_linearly_with_the_number_of_transactions(
    work: Callable[[int, int], None], producers: int
) -> None:
    taken = []
    for count in (500, 4_000):
        Counted.comparisons = 0
        work(count, producers)
        taken.append(Counted.comparisons)
    assert taken[1] < 2 * 8 * taken[0], "eight times as many, with a logarithm"
