"""Records as the Kafka protocol allows them, also those that confluent-kafka refuses to write."""

from __future__ import annotations

import socket
import struct
import time

import crc32c

Header = tuple[bytes, bytes | None]


def produce(server: str, topic: str, records: list[tuple[bytes, list[Header]]]) -> None:
    """Append records (values and headers) to partition 0 of a topic, on the broker `server`."""
    host, _, port = server.rpartition(":")
    batch = _batch(records)
    body = struct.pack(">hhi", -1, -1, 30_000)  # no transaction, acks of all replicas, timeout
    body += struct.pack(">i", 1) + _text(topic) + struct.pack(">iii", 1, 0, len(batch)) + batch
    request = struct.pack(">hhi", 0, 3, 1) + _text("raw") + body
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    # Correlation id, one topic with its name, one partition with its number and an error code.
    at = 4 + 4 + len(_text(topic)) + 4 + 4
    (error,) = struct.unpack_from(">h", answer, at)
    assert error == 0, error


def _batch(records: list[tuple[bytes, list[Header]]]) -> bytes:
    """Return a record batch of version 2, without a producer."""
    now, count = int(time.time() * 1000), len(records)
    body = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count)
    body += b"".join(_record(delta, *record) for delta, record in enumerate(records))
    checked = struct.pack(">ibI", -1, 2, crc32c.crc32c(body)) + body
    return struct.pack(">qi", 0, len(checked)) + checked


def _record(delta: int, value: bytes, headers: list[Header]) -> bytes:
    content = b"\x00" + _varint(0) + _varint(delta) + _varint(-1) + _bytes(value)
    content += _varint(len(headers))
    content += b"".join(_bytes(key) + _bytes(data) for key, data in headers)
    return _bytes(content)


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    rest, parts = (number << 1) ^ (number >> 63), []
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*parts, rest])


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
