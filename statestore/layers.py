"""Sorted layers in memory: newest first, immutable once sealed.

A `Layer` maps keys to values, with None for a deletion. Its sorted index is built when a scan first
needs it. `Layers` is a stack of them with one open layer on top, which takes the writes. A scan
seals the open layer and keeps the stack of that moment, so it shows one moment even if it takes
long. Sealed layers of similar size are merged, so that n writes between scans leave at most about
log2(n) layers to search.

A layer may also have deleted ranges. They hide all keys of the layers below it, and the layer does
not contain the deletions of these keys.

`overlaid` merges two sorted streams and prefers the upper one; `visible` merges a whole stack. It
reports where it has passed many deletions and no value. Such a part may be deleted as a range, which
changes nothing but lets later scans skip it. A queue needs this: each of its scans begins where
earlier ones have removed everything.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat

from strandline.statestore.engine import Column, Entry
from strandline.statestore.ranges import NO_RANGES, DeletedRanges, Scan, are_many

Change = tuple[bytes, bytes | None]

OnEmpty = Callable[[bytes, bytes | None], None]
"""Function that is called with an interval in which a scan has found no value."""

RANGE_BYTES = 200
"""Approximate bytes of a deleted range in memory."""

MISSING = bytes(bytearray(b"missing"))
"""Marks a missing value. It is compared by identity, so no stored value is mistaken for it."""


class Layer:
    """Set of changes: maps each key to its value, or to None for a deletion.

    The keys of `ranges` that are not in `data` are deleted too.
    """

    __slots__ = ("_data", "_index", "_values", "nbytes", "ranges")

    def __init__(
        self, data: dict[bytes, bytes | None], nbytes: int, ranges: DeletedRanges = NO_RANGES
    ) -> None:
        self._data: dict[bytes, bytes | None] | None = data
        self.nbytes = nbytes
        self.ranges = ranges
        self._index: list[bytes] | None = None
        self._values: list[bytes | None] | None = None

    @classmethod
    def of_sorted(cls, keys: list[bytes], values: list[bytes | None], nbytes: int) -> Layer:
        """Return a sealed layer of ascending distinct keys. Its dict is made at the first use."""
        layer = cls({}, nbytes)
        layer._data, layer._index, layer._values = None, keys, values
        return layer

    def __len__(self) -> int:
        return self.num_keys + len(self.ranges)

    @property
    def num_keys(self) -> int:
        """Number of keys with a value or a deletion of their own."""
        return len(self.index if self._data is None else self._data)

    @property
    def data(self) -> dict[bytes, bytes | None]:
        """Value of each key."""
        if self._data is None:
            assert self._index is not None
            assert self._values is not None
            self._data = dict(zip(self._index, self._values, strict=True))
        return self._data

    def sorted_changes(self) -> tuple[list[bytes], list[bytes | None]]:
        """Return the keys, sorted, and their values. The layer must be sealed."""
        if self._values is not None:
            return self.index, self._values
        return self.index, [self.data[key] for key in self.index]

    @classmethod
    def above_ranges(
        cls,
        keys: Column[bytes],
        values: Sequence[bytes | None],
        nbytes: int,
        ranges: DeletedRanges,
    ) -> Layer:
        """Return a layer with deleted ranges, and changes of about `nbytes` bytes after them."""
        pairs = zip(keys, values, strict=True)
        data = {key: value for key, value in pairs if value is not None or key not in ranges}
        share = nbytes * len(data) // max(1, len(keys))
        return cls(data, share + RANGE_BYTES * len(ranges), ranges)

    def add(self, keys: Column[bytes], values: Sequence[bytes | None], nbytes: int) -> None:
        """Add changes of about `nbytes` bytes. The layer must not be sealed."""
        before = len(self.data)
        self.data.update(zip(keys, values, strict=True))
        # Only new keys add to the size.
        self.nbytes += nbytes * (len(self.data) - before) // max(1, len(keys))

    @property
    def index(self) -> list[bytes]:
        """Sorted keys, built at the first use."""
        if self._index is None:
            self._index = sorted(self.data)
        return self._index

    def scan(self, lower: bytes, upper: bytes | None, /, *, reverse: bool) -> Iterator[Change]:
        """Return the changes of [lower, upper) in the order of their keys."""
        index, data = self.index, self.data
        places = span(index, lower, upper)
        # Not copied, because a scan may end after a few of many keys.
        keys = map(index.__getitem__, reversed(places) if reverse else places)
        return ((key, data[key]) for key in keys)

    def reaches_into(self, lower: bytes, upper: bytes | None) -> bool:
        """Return True if a key with a value or a deletion of its own is in [lower, upper)."""
        index = self.index
        place = bisect_left(index, lower)
        return place < len(index) and (upper is None or index[place] < upper)

    def under(self, newer: Layer) -> Layer:
        """Return one layer with the changes of both; those of `newer` take precedence."""
        below = self._outside(newer.ranges) if newer.ranges else self
        merged = Layer(dict(below.data), below.nbytes, below.ranges | newer.ranges)
        merged.add(newer.data.keys(), [*newer.data.values()], newer.nbytes)
        # The list has two sorted runs, which Python's sort merges in linear time.
        merged._index = sorted(below.index + [key for key in newer.index if key not in below.data])
        return merged

    def num_covered(self, ranges: DeletedRanges) -> int:
        """Return the number of keys in `data` that the ranges cover."""
        return sum(len(span(self.index, *interval)) for interval in ranges)

    def _outside(self, ranges: DeletedRanges) -> Layer:
        """Return this layer without the keys that the ranges cover."""
        covered = self.num_covered(ranges)
        if not covered:
            return self
        gaps = [span(self.index, *gap) for gap in ranges.gaps(b"", None)]
        index = [key for places in gaps for key in self.index[places.start : places.stop]]
        left = self.nbytes * len(index) // len(self.data)
        kept = Layer({key: self.data[key] for key in index}, left, self.ranges)
        kept._index = index
        return kept


@dataclass(frozen=True, slots=True)
class Above:
    """Changes that a scan shows above committed ones."""

    changes: Iterable[Change] = ()
    """Changes within the bounds of the scan, in its order."""
    ranges: DeletedRanges = NO_RANGES
    """Ranges that were deleted, without regard to `changes`."""
    on_empty: OnEmpty | None = None
    """Called for each interval without a value in which the scan has passed many deletions."""


NOTHING = Above()
"""No changes."""


class Layers:
    """A stack of layers. One thread writes; other threads may read and scan at the same time."""

    def __init__(self) -> None:
        self._open = Layer({}, 0)
        self._sealed: tuple[Layer, ...] = ()
        self._held: Layer | None = None
        self._lock = threading.Lock()
        self.hold_count = 0
        """Number of times that `hold` has created a held layer."""

    def __bool__(self) -> bool:
        return bool(self._open or self._sealed)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the keys and values in all layers."""
        return self._open.nbytes + sum(layer.nbytes for layer in self._sealed)

    def num_changes(self) -> int:
        """Return the number of keys in all layers; a key in several layers counts in each."""
        return self._open.num_keys + sum(layer.num_keys for layer in self._sealed)

    def find(self, key: bytes) -> bytes | None:
        """Return the newest value of a key: None if deleted, `MISSING` if no layer has the key."""
        return look_up((self._open, *self._sealed), key)

    def find_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the newest value of each key, as `find` does."""
        return look_up_all((self._open, *self._sealed), keys)

    def add(
        self,
        keys: Column[bytes],
        values: Sequence[bytes | None],
        nbytes: int,
        ranges: DeletedRanges = NO_RANGES,
    ) -> None:
        """Add changes on top: first the deletion of `ranges`, then a value for each key."""
        with self._lock:
            if ranges:  # They hide what is below their layer, and so they need one of their own.
                self._seal()
                self._open = Layer.above_ranges(keys, values, nbytes, ranges)
            else:
                self._open.add(keys, values, nbytes)

    def seal(self) -> tuple[Layer, ...]:
        """Return the stack of this moment, newest first; its layers are immutable."""
        with self._lock:
            return self._seal()

    def hold_as(self, layer: Layer) -> None:
        """Hold a sealed layer as `hold` does. There must be no other changes."""
        with self._lock:
            assert not self
            self.hold_count += 1
            self._held, self._sealed = layer, (layer,)

    def hold(self) -> Layer | None:
        """Merge everything into one sealed layer at the bottom, which stays unchanged until `drop`.

        Returns:
            The layer; the same one if called again before `drop`. None if there are no changes.
        """
        with self._lock:
            if self._held is None and self._seal():
                self.hold_count += 1
                self._held = _merged(self._sealed)
                self._sealed = (self._held,)
            return self._held

    def drop(self) -> None:
        """Remove the held layer, whose changes are in the engine now."""
        with self._lock:
            self._sealed = self._sealed[:-1]
            self._held = None

    def purge(self) -> None:
        """Merge everything into one layer without deletions, for a stack with no engine below it."""
        with self._lock:
            if self._seal():
                merged = _merged(self._sealed)
                kept: dict[bytes, bytes | None] = {
                    key: value for key, value in merged.data.items() if value is not None
                }
                share = len(kept) / max(1, len(merged.data))
                self._sealed = (Layer(kept, int(merged.nbytes * share)),) if kept else ()

    def clear(self) -> None:
        """Remove all layers."""
        with self._lock:
            self._sealed, self._open, self._held = (), Layer({}, 0), None

    def _seal(self) -> tuple[Layer, ...]:
        if self._open:
            # Readers take no lock. The new stack is set before the new open layer, so a reader in
            # between finds the same changes twice. In the other order it could miss them.
            self._sealed = _compacted((self._open, *self._sealed), self._held)
            self._open = Layer({}, 0)
        return self._sealed


def look_up(layers: Iterable[Layer], key: bytes) -> bytes | None:
    """Return the value of a key in the first of `layers` that has it; `MISSING` if none does."""
    for layer in layers:
        value = layer.data.get(key, MISSING)
        if value is not MISSING:
            return value
        if layer.ranges is not NO_RANGES and key in layer.ranges:
            return None
    return MISSING


def look_up_all(layers: Sequence[Layer], keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the value of each key as `look_up` does."""
    if any(layer.ranges for layer in layers):
        return [look_up(layers, key) for key in keys]
    tables = [layer.data for layer in layers if layer.data]
    if not tables:
        return [MISSING] * len(keys)
    # Calls of C functions by C functions, because one look-up in Python takes longer than both.
    found = list(map(tables[0].get, keys, repeat(MISSING)))
    for table in tables[1:]:
        found = [
            table.get(key, MISSING) if value is MISSING else value
            for key, value in zip(keys, found, strict=True)
        ]
    return found


def visible(
    above: Above,
    layers: Iterable[Layer],
    engine: Scan[Entry] | None,
    bounds: tuple[bytes, bytes | None],
    *,
    reverse: bool,
) -> Iterator[Entry]:
    """Return the entries of a stack in the order of their keys, as of this call.

    Args:
        above: Changes above the stack.
        layers: Sealed layers, newest first.
        engine: Scan of the engine below them; None if there is none.
        bounds: First key, and the end (exclusive) or None.
        reverse: True to begin with the last entry.
    """
    streams = [iter(above.changes)]
    ranges = above.ranges
    for layer in layers:
        if layer.reaches_into(*bounds):
            streams.append(ranges.scan_outside(layer.scan, *bounds, reverse=reverse))
        if layer.ranges:
            ranges |= layer.ranges.within(*bounds)
    if engine is not None:
        streams.append(ranges.scan_outside(engine, *bounds, reverse=reverse))
    merged = reduce(lambda older, newer: overlaid(newer, older, reverse=reverse), reversed(streams))
    if above.on_empty is None:
        return ((key, value) for key, value in merged if value is not None)
    return _reporting(merged, bounds, above.on_empty, reverse=reverse)


def _reporting(
    changes: Iterable[Change],
    bounds: tuple[bytes, bytes | None],
    on_empty: OnEmpty,
    *,
    reverse: bool,
) -> Iterator[Entry]:
    """Yield the entries among sorted changes, and report where there are only deletions."""
    last, passed = None, 0
    for key, value in changes:
        if value is None:
            passed += 1
            continue
        if passed and are_many(passed):
            on_empty(*_between(last, key, bounds, reverse=reverse))
        passed = 0
        yield key, value
        last = key
    if are_many(passed):
        on_empty(*_between(last, None, bounds, reverse=reverse))


def _between(
    one: bytes | None, other: bytes | None, bounds: tuple[bytes, bytes | None], *, reverse: bool
) -> tuple[bytes, bytes | None]:
    """Return the interval between two keys that a scan has found; None is the end of the scan."""
    before, after = (other, one) if reverse else (one, other)
    return (
        bounds[0] if before is None else before + b"\x00",
        bounds[1] if after is None else after,
    )


def overlaid(
    upper: Iterable[Change], lower: Iterable[Change], *, reverse: bool
) -> Iterator[Change]:
    """Merge two sorted streams; for a key in both, yield the upper one's value.

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


def span(index: list[bytes], lower: bytes, upper: bytes | None) -> range:
    """Return the places of a sorted list in [lower, upper); an `upper` of None is no limit."""
    end = len(index) if upper is None else bisect_left(index, upper)
    return range(bisect_left(index, lower), end)


def _merged(layers: tuple[Layer, ...]) -> Layer:
    """Return one layer with the changes of all, given newest first."""
    return reduce(lambda newer, older: older.under(newer), layers)


def _compacted(layers: tuple[Layer, ...], keep: Layer | None) -> tuple[Layer, ...]:
    """Merge the top two layers while the second is less than twice as large as the first.

    The layer `keep` is not merged, because a checkpoint is writing it.
    """
    while len(layers) > 1 and layers[1] is not keep:
        first, second, *rest = layers
        if len(second) >= 2 * len(first):
            break
        layers = (second.under(first), *rest)
    return layers
