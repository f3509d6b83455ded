"""Answers over TCP to calls other than fetches, counted as in flight until they are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from strandline.changelog.flight.budgets import ClientBudget
from strandline.changelog.flight.clients import Client
from strandline.changelog.flight.limits import COUNTED_ANSWER_BYTES


class CountedAnswers:
    """Encodes answers one at a time, and counts the large ones. Thread-safe."""

    def __init__(self, budget: ClientBudget) -> None:
        self._budget = budget
        self._encoding = threading.Lock()
        """Held while an answer is encoded and counted."""

    def of(
        self, client: Client, encoded: Callable[[], list[bytes]], more: Sequence[bytes]
    ) -> Iterable[bytes]:
        """Return the messages of an answer, and `more` after them.

        Their size is known once they are encoded, so the last answer may exceed the limit. One is
        encoded at a time, because threads that have encoded theirs would otherwise wait for the
        interpreter with answers that are not counted yet.

        Raises QuotaExceeded, without encoding, if the client has reached its limit.
        """
        messages, counted = self._encoded(client, encoded)
        messages += more
        if not counted:
            return messages
        answers = self._until_sent(client, counted, messages)
        next(answers)  # a generator that was never started would not return what it counts
        return answers

    def _encoded(
        self, client: Client, encoded: Callable[[], list[bytes]]
    ) -> tuple[list[bytes], int]:
        """Return the messages of an answer, and their bytes if they are counted."""
        while True:
            with self._budget.taken(client, 1):  # waits for calls of lost clients, and for no peer
                pass
            with self._encoding:
                if self._budget.has_room(client):
                    messages = encoded()
                    size = sum(map(len, messages))
                    if size < COUNTED_ANSWER_BYTES:
                        return messages, 0
                    self._budget.add(client, size)
                    return messages, size

    def _until_sent(self, client: Client, size: int, messages: list[bytes]) -> Iterator[bytes]:
        """Yield b"" once, then the messages of an answer; return its bytes when they are sent."""
        try:
            yield b""
            while messages:
                yield messages.pop(0)
        finally:
            self._budget.give(client, size)
