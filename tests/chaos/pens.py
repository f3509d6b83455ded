"""Producers that write while everything around them breaks, and record what was acknowledged."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.errors import (
    ProducerFenced,
    Retriable,
    StorageFailed,
    StrandlineError,
    TransactionAborted,
)
from tests.workers.pipeline import Pipeline

LETTERS = "abcdefgh"
WORDS = 25
"""Number of different words per letter."""
PAUSE_SECONDS = 0.05
AGES_MS = (0,) * 15 + (900, 4_000)
"""Milliseconds since a transaction's words happened: most are just now, a few come late."""


class SureWriter:
    """Writes transactions while the log's owner may die, and finds out which were committed."""

    def __init__(self, broker: Broker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        self._producer: Producer | None = None

    def write(self, append: Callable[[Producer], None]) -> bool:
        """Write one transaction. Return True if it is committed, False if it never will be."""
        if self._producer is None:
            self._producer = self._made_anew()
        try:
            self._producer.begin_transaction()
            append(self._producer)
            self._producer.commit_transaction()
            return True
        except StrandlineError:
            if self._resolve(self._producer):
                return True
            self._producer = None
            return False

    def _resolve(self, producer: Producer) -> bool:
        """Find out whether the transaction was committed."""
        while producer.state is ProducerPhase.IN_DOUBT:
            try:
                producer.commit_transaction()
                return True
            except (TransactionAborted, ProducerFenced):
                return False
            except (Retriable, StorageFailed):
                threading.Event().wait(PAUSE_SECONDS)
        return False

    def _made_anew(self) -> Producer:
        """Return a new producer. It aborts the open transaction of the previous one."""
        while True:
            try:
                return Producer(self._broker, transactional_id=self._id)
            except (Retriable, StorageFailed):
                threading.Event().wait(PAUSE_SECONDS)


class Pen:
    """Writes transactions. Each is repeated until it is known to be committed, and only then."""

    def __init__(self, made: Pipeline, number: int, seed: int, wait: Callable[[], bool]) -> None:
        self.acknowledged: list[int] = []
        self.repeats = 0
        """Number of transactions that were aborted and written again."""
        self._made = made
        self._id = f"pen-{number}"
        self._writer = SureWriter(made.app.broker(), self._id)
        self._first = number * 10**9
        self._chance = random.Random(f"{seed}/{number}")
        self._must_wait = wait
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current transaction is committed."""
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), f"{self._id} does not come to an end"

    def _write(self) -> None:
        value = self._first
        while not self._stop.is_set():
            if self._must_wait():
                self._stop.wait(PAUSE_SECONDS)
                continue
            size = self._chance.choice([1, 20, 100, 300])
            values = list(range(value, value + size))
            value += size
            words = [
                f"{self._chance.choice(LETTERS)}{self._chance.randrange(WORDS)}" for _ in values
            ]
            while not self._try(words, values):
                self.repeats += 1
                self._stop.wait(PAUSE_SECONDS)
            self.acknowledged += values

    def _try(self, words: list[str], values: list[int]) -> bool:
        """Write one transaction. Return True if it is committed, False if it never will be."""
        topic = self._made.words
        at_ms = self._made.app.session.clock.now_ms() - self._chance.choice(AGES_MS)
        keys = topic.keys.encode([topic.keys.item(word) for word in words]).to_pylist()
        items = topic.values.encode([topic.values.item(value) for value in values]).to_pylist()

        def append(producer: Producer) -> None:
            producer.append_columns("words", keys, items, [at_ms] * len(keys))

        return self._writer.write(append)
