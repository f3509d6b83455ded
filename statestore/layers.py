"""Sorted layers in memory: newest first, immutable once sealed.

A `Layer` maps keys to values, None standing for a deletion, and has a sorted index that is
built when a scan first needs it. `Layers` is a stack of them with one open layer on top that
takes writes. A scan seals the open layer and holds on to the stack as it is then, so it sees
one moment however long it runs. Sealed layers of similar size are merged, so that n writes
between scans never leave more than about log2(n) layers to look through.

`overlaid` merges two sorted streams of which the upper wins: a whole stack is a fold of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import reduce

from strandline.statestore.engine import Column

Change = tuple[bytes, bytes | None]

MISSING = bytes(bytearray(b"missing"))
"""Stands for no value; compared by identity, so no value can be taken for it."""


class Layer:
    """Changes that belong together: key to value, or to None for a deletion."""

    __slots__ = ("_index", "data", "nbytes")

    def __init__(self, data: dict[bytes, bytes | None], nbytes: int) -> None:
        self.data = data
        self.nbytes = nbytes
        self._index: list[bytes] | None = None

    def add(self, keys: Column[bytes], values: Iterable[bytes | None], nbytes: int) -> None:
        """Put changes of about `nbytes` into a layer that is not sealed yet."""
        before = len(self.data)
        self.data.update(zip(keys, values, strict=True))
        # Keys that were here already take no more room.
        self.nbytes += nbytes * (len(self.data) - before) // max(1, len(keys))

    @property
    def index(self) -> list[bytes]:
        """The keys, sorted."""
        if self._index is None:
            self._index = sorted(self.data)
        return self._index

    def scan(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Iterator[Change]:
        """The changes of [lower, upper) in the order of their keys."""
        keys = between(self.index, lower, upper)
        data = self.data
        return ((key, data[key]) for key in (reversed(keys) if reverse else keys))

    def under(self, newer: Layer) -> Layer:
        """Both in one, `newer` winning."""
        merged = Layer(dict(self.data), self.nbytes)
        merged.add(newer.data.keys(), newer.data.values(), newer.nbytes)
        # Two sorted runs: the sort only merges them.
        merged._index = sorted(self.index + [key for key in newer.index if key not in self.data])
        return merged


class Layers:
    """A stack of layers. One thread writes; others may read and scan beside it."""

    def __init__(self) -> None:
        self._open = Layer({}, 0)
        self._sealed: tuple[Layer, ...] = ()
        self._held: Layer | None = None
        self._lock = threading.Lock()
        self.holds = 0
        """How often `hold` has taken hold of what there was."""

    def __bool__(self) -> bool:
        return bool(self._open.data or self._sealed)

    @property
    def nbytes(self) -> int:
        """About how many bytes the keys and values in all layers have."""
        return self._open.nbytes + sum(layer.nbytes for layer in self._sealed)

    def num_changes(self) -> int:
        """How many keys the layers hold, those in several counted several times."""
        return len(self._open.data) + sum(len(layer.data) for layer in self._sealed)

    def find(self, key: bytes) -> bytes | None:
        """The newest value of a key, None if it was deleted, `MISSING` if no layer knows it."""
        value = self._open.data.get(key, MISSING)
        return look_up(self._sealed, key) if value is MISSING else value

    def add(self, keys: Column[bytes], values: Iterable[bytes | None], nbytes: int) -> None:
        """Put changes on top."""
        with self._lock:
            self._open.add(keys, values, nbytes)

    def seal(self) -> tuple[Layer, ...]:
        """The stack as it is now, newest first, none of it to be changed again."""
        with self._lock:
            return self._seal()

    def hold(self) -> Layer | None:
        """Everything as one sealed layer at the bottom, left as it is until `drop`; None if empty.

        Called again before `drop` it gives the same layer again.
        """
        with self._lock:
            if self._held is None and self._seal():
                self.holds += 1
                self._held = reduce(lambda newer, older: older.under(newer), self._sealed)
                self._sealed = (self._held,)
            return self._held

    def drop(self) -> None:
        """Take out the held layer: the engine has it now."""
        with self._lock:
            self._sealed = self._sealed[:-1]
            self._held = None

    def clear(self) -> None:
        """Take out everything."""
        with self._lock:
            self._sealed, self._open, self._held = (), Layer({}, 0), None

    def _seal(self) -> tuple[Layer, ...]:
        if self._open.data:
            # First the new stack, then the new open layer: a reader in between finds the
            # same changes twice, never not at all.
            self._sealed = _compacted((self._open, *self._sealed), self._held)
            self._open = Layer({}, 0)
        return self._sealed


def look_up(layers: Iterable[Layer], key: bytes) -> bytes | None:
    """The value of a key in the first of `layers` that knows it; `MISSING` if none does."""
    for layer in layers:
        value = layer.data.get(key, MISSING)
        if value is not MISSING:
            return value
    return MISSING


def overlaid(
    upper: Iterable[Change], lower: Iterable[Change], *, reverse: bool
) -> Iterator[Change]:
    """Two sorted streams as one; of a key in both, the upper one's value.

    >>> list(overlaid([(b"a", None), (b"c", b"3")], [(b"a", b"1"), (b"b", b"2")], reverse=False))
    [(b'a', None), (b'b', b'2'), (b'c', b'3')]
    """
    above, below = iter(upper), iter(lower)
    top, bottom = next(above, None), next(below, None)
    while top is not None and bottom is not None:
        if top[0] == bottom[0]:
            yield top
            top, bottom = next(above, None), next(below, None)
        elif (top[0] < bottom[0]) != reverse:
            yield top
            top = next(above, None)
        else:
            yield bottom
            bottom = next(below, None)
    rest, first = (above, top) if top is not None else (below, bottom)
    if first is not None:
        yield first
        yield from rest


def between(index: list[bytes], lower: bytes, upper: bytes | None) -> list[bytes]:
    """The part of a sorted list in [lower, upper); None stands for no limit."""
    end = len(index) if upper is None else bisect_left(index, upper)
    return index[bisect_left(index, lower) : end]


def _compacted(layers: tuple[Layer, ...], keep: Layer | None) -> tuple[Layer, ...]:
    """Merge from the top while the second layer is not at least twice as large as the first."""
    while len(layers) > 1 and layers[1] is not keep:
        first, second, *rest = layers
        if len(second.data) >= 2 * len(first.data):
            break
        layers = (second.under(first), *rest)
    return layers
