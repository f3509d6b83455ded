"""Aggregates: figures that are kept for each key, by rows and by columns.

`declare` has the public functions, such as `count` and `mean`. A kind of aggregate is one class,
in `numeric`, `ordered`, `distinct`, `sketches` or `reducer`, with the forms that `aggregate`
describes. `group` keeps several together, and `stores` keeps them in stores.
"""

from strandline.statestore.aggregates.aggregate import Aggregate
from strandline.statestore.aggregates.declare import (
    any,  # noqa: A004
    collect,
    count,
    first,
    last,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    n_unique,
    quantile,
    recorded,
    reducer,
    std,
    sum,  # noqa: A004
    top,
    var,
)
from strandline.statestore.aggregates.group import Aggregates
from strandline.statestore.aggregates.stores import AggregateStore, CounterStore, counter_spec

__all__ = [
    "Aggregate",
    "AggregateStore",
    "Aggregates",
    "CounterStore",
    "any",
    "collect",
    "count",
    "counter_spec",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "n_unique",
    "quantile",
    "recorded",
    "reducer",
    "std",
    "sum",
    "top",
    "var",
]
