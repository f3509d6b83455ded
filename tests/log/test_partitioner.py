"""A key goes to the same partition as with Kafka's Java client."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.client.keys import encode_key, encode_keys
from strandline.changelog.client.partitioner import (
    LEAST_RUN_BYTES,
    StickyPartitioner,
    murmur2,
    murmur2_array,
    partition_for,
    partitions_for,
)

VECTORS = json.loads((Path(__file__).parent / "murmur2_vectors.json").read_text())
KEYS = [bytes.fromhex(vector["key"]) for vector in VECTORS]


def test_vectors_cover_all_lengths_and_keys_that_are_not_utf8() -> None:
    assert sorted(map(len, KEYS)) == list(range(301))
    assert sum(b"\xff" in key or b"\x80" in key for key in KEYS) > 100


def test_one_key_hashes_as_in_java() -> None:
    assert [murmur2(key) for key in KEYS] == [vector["murmur2"] for vector in VECTORS]


def test_a_column_of_keys_hashes_as_in_java() -> None:
    hashes = murmur2_array(pa.array(KEYS, pa.binary()))
    assert hashes.astype(np.int32).tolist() == [vector["murmur2"] for vector in VECTORS]


@pytest.mark.parametrize("partitions", [1, 4, 7, 1000])
def test_partitions_are_those_of_the_java_producer(partitions: int) -> None:
    expected = [vector["partitions"][str(partitions)] for vector in VECTORS]
    assert [partition_for(key, partitions) for key in KEYS] == expected
    assert partitions_for(pa.array(KEYS, pa.binary()), partitions).tolist() == expected


@given(st.lists(st.binary(max_size=40) | st.none(), max_size=80), st.integers(1, 50), st.data())
def test_a_column_agrees_with_its_keys_one_by_one(
    keys: list[bytes | None], partitions: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(keys)))
    column = pa.array(keys, pa.binary()).slice(start)
    expected = [-1 if key is None else partition_for(key, partitions) for key in keys[start:]]
    assert partitions_for(column, partitions).tolist() == expected


def test_one_huge_key_among_many_small_ones_hashes_the_same() -> None:
    keys = [b"k%d" % i for i in range(100)] + [b"x" * 1_000_003]
    hashes = murmur2_array(pa.array(keys, pa.binary())).astype(np.int32)
    assert hashes.tolist() == [murmur2(key) for key in keys]


def test_keys_across_the_pieces_of_a_hashed_column_hash_the_same() -> None:
    keys = [b"user-%d" % (i * 7919) for i in range(40_000)]
    hashes = murmur2_array(pa.array(keys, pa.binary())).astype(np.int32)
    sample = range(16_380, 16_390)
    assert [int(hashes[i]) for i in sample] == [murmur2(keys[i]) for i in sample]
    assert int(hashes[-1]) == murmur2(keys[-1])


@given(
    st.integers(0, 40).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=20)),
    st.integers(0, 60),
    st.integers(0, 3),
)
def test_keys_of_one_length_hash_as_one_by_one(keys: list[bytes], start: int, skip: int) -> None:
    skip = min(skip, len(keys[0]))
    column = pa.array(keys * 4, pa.binary()).slice(start)
    expected = [murmur2(key[skip:]) for key in (keys * 4)[start:]]
    assert murmur2_array(column, skip=skip).astype(np.int32).tolist() == expected


@pytest.mark.parametrize("skip", [0, 1, 3])
def test_bytes_before_the_keys_are_left_out(skip: int) -> None:
    keys = [b"", b"a", b"abcd", b"user-00001", b"x" * 37, b""]
    tagged = pa.array([b"#" * skip + key for key in [b"another", *keys]], pa.binary())[1:]
    found = partitions_for(tagged, 7, skip=skip).tolist()
    assert found == [partition_for(key, 7) for key in keys]


def test_an_empty_column_has_no_partitions() -> None:
    assert partitions_for(pa.array([], pa.binary()), 4).tolist() == []


@pytest.mark.parametrize(
    ("keys", "encoded"),
    [
        (pa.array(["é", None]), ["é".encode(), None]),
        (pa.array([b"\xff", None]), [b"\xff", None]),
        (pa.array([1, -1, None], pa.int16()), [struct.pack(">q", 1), struct.pack(">q", -1), None]),
        (pa.array([1.5, None], pa.float32()), [struct.pack(">d", 1.5), None]),
        (pa.array([True, None]), [b"\xc3", None]),
        (pa.array(["a", "b"]).dictionary_encode().dictionary_decode(), [b"a", b"b"]),
    ],
)
def test_a_column_of_keys_is_encoded_as_its_keys_are(
    keys: pa.Array, encoded: list[bytes | None]
) -> None:
    assert encode_keys(keys).to_pylist() == encoded
    assert [encode_key(key) for key in keys.to_pylist()] == encoded


def test_keyless_records_stay_with_a_partition_for_a_batch() -> None:
    sticky = StickyPartitioner(4, batch_bytes=100, seed="s")
    chosen = [sticky.take(10) for _ in range(40)]
    batches = [chosen[i : i + 10] for i in range(0, 40, 10)]
    assert all(len(set(batch)) == 1 for batch in batches)
    assert all(a[0] != b[0] for a, b in itertools.pairwise(batches))


def test_keyless_records_reach_every_partition() -> None:
    sticky = StickyPartitioner(4, batch_bytes=1, seed="s")
    counts = np.bincount([sticky.take(1) for _ in range(1000)], minlength=4)
    assert counts.min() > 150


def test_the_same_seed_gives_the_same_partitions() -> None:
    first, second = (StickyPartitioner(8, batch_bytes=1, seed="s") for _ in range(2))
    assert [first.take(1) for _ in range(50)] == [second.take(1) for _ in range(50)]


def test_keyless_records_change_the_partition_after_a_sent_batch() -> None:
    sticky = StickyPartitioner(4, batch_bytes=1000, seed="s")
    before = sticky.take(1)
    sticky.batch_sent((before + 1) % 4)
    assert sticky.take(1) == before
    sticky.batch_sent(before)
    assert sticky.take(1) != before


@given(st.integers(1, 5_000), st.integers(1, 1_000), st.integers(1, 7))
def test_many_keyless_records_at_once_go_to_all_partitions_in_runs(
    count: int, size: int, partitions: int
) -> None:
    sticky = StickyPartitioner(partitions, batch_bytes=1 << 20, seed="s")
    first = sticky._current
    chosen = sticky.take_many(count, count * size).tolist()
    assert len(chosen) == count
    assert chosen[0] == first
    runs = [len(list(run)) for _, run in itertools.groupby(chosen)]
    assert max(runs) - min(runs) <= 1
    assert len(runs) == 1 or min(runs) * size >= LEAST_RUN_BYTES // 2
    if count * size >= 2 * partitions * LEAST_RUN_BYTES:
        assert set(chosen) == set(range(partitions))


def test_few_keyless_records_at_a_time_go_where_they_would_one_by_one() -> None:
    one, few = (StickyPartitioner(4, batch_bytes=1000, seed="s") for _ in range(2))
    at_once = [int(number) for _ in range(50) for number in few.take_many(10, 100)]
    assert at_once == [one.take(10) for _ in range(500)]


def test_large_keyless_records_make_batches_of_a_batch_s_size() -> None:
    sticky = StickyPartitioner(2, batch_bytes=1 << 20, seed="s")
    chosen = sticky.take_many(64, 64 << 18).tolist()
    assert {len(list(run)) for _, run in itertools.groupby(chosen)} == {4}
