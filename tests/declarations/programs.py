"""One app in several versions of its program: each declares its stores in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import strandline as sl

Handle = Callable[[Any, sl.Record[str, Any]], None]


def put_value(store: Any, record: sl.Record[str, Any]) -> None:
    """Store the value of a record under its key."""
    store[record.key] = record.value


class Program:
    """A version of the app "shop": one input, one task, one store."""

    def __init__(
        self,
        log: str | Path,
        *,
        handle: Handle = put_value,
        on_error: Any = "fail",
        store: Callable[[sl.App], Any] | None = None,
        state: str | Path | None = None,
        **settings: Any,
    ) -> None:
        self.app = sl.App("shop", log=str(log), state_dir=state)
        self.sales = self.app.topic("sales", key=str, value=Any, partitions=2)
        self.store: Any = self.app.store("totals", **settings) if store is None else store(self.app)

        @self.app.task(self.sales, stores=[self.store], on_error=on_error, name="tally")
        def tally(record: sl.Record[str, Any]) -> None:
            handle(self.store, record)

    def run(self, *records: tuple[str, Any]) -> int:
        """Append these records, and handle everything."""
        if records:
            self.sales.append(records)
        return self.app.run(until="idle", progress=False)

    def content(self) -> dict[Any, Any]:
        """Return the committed content of the store."""
        return self.app.query(self.store).to_dict()


@contextmanager
def program(log: str | Path, **options: Any) -> Iterator[Program]:
    """Open a version of the program, closed after the block."""
    made = Program(log, **options)
    try:
        yield made
    finally:
        made.app.close()
