"""Short and long forms of tests: the suite is to end within minutes, and every night has hours."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

LONG = os.environ.get("STRANDLINE_LONG") == "1"
"""True if the long forms are to run: `make test` with STRANDLINE_LONG=1, every night in CI."""


def by_form(short: T, long: T) -> T:
    """Return what the form that runs needs."""
    return long if LONG else short


def examples(number: int) -> int:
    """Return the number of examples of a property: a fifth of them in the short form."""
    return by_form(max(5, number // 5), number)


def first_of(
    values: Iterable[Any], few: int, rest: pytest.MarkDecorator = pytest.mark.long
) -> list[Any]:
    """Return parameters of a test, of which the short form has the first `few`.

    The others get the mark `rest`.
    """
    return [
        pytest.param(value, marks=[] if number < few else rest)
        for number, value in enumerate(values)
    ]


def few_on_kafka(values: Iterable[Any], few: int = 1) -> list[Any]:
    """Return parameters of a test of which the first `few` run on Kafka in the short form."""
    return first_of(values, few, pytest.mark.long_on_kafka)
