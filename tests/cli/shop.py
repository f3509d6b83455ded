"""The app that the tests of the command run."""

from __future__ import annotations

import strandline as sl

app = sl.App("shop", log="data/shop")
orders = app.topic("orders", key=str, value=dict, partitions=2)
totals = app.store("totals", key=str, value=int, default=0)
routes = app.store("routes", key=tuple[str, int], value=dict)
sums = app.topic("sums", key=str, value=int, partitions=2)


@app.task(orders, stores=[totals, routes])
def count(record: sl.Record[str, dict[str, int]]) -> None:
    """Count orders by key; one without `n` fails."""
    totals[record.key] += record.value["n"]
    routes[record.key, record.value["n"]] = {"mean": record.value["n"] / 3}
    sums.send(record.key, totals[record.key])


if __name__ == "__main__":
    app.main()
