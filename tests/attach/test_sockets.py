"""Paths of sockets, on machines and in containers that have no room for them."""

from __future__ import annotations

import tempfile

import msgspec
import pytest

from strandline.changelog.errors import StorageFailed
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.flight_calls import no_answer
from strandline.changelog.flight.private import private_socket


@pytest.fixture
def without_temporary_folder(monkeypatch):
    def fail():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)


def test_a_missing_temporary_folder_is_named(without_temporary_folder, tmp_path):
    with pytest.raises(StorageFailed, match="TMPDIR"):
        private_socket("relay.sock")
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(StorageFailed, match="TMPDIR"):
        endpoints.new_endpoint(deep)
    assert endpoints.new_endpoint(tmp_path).socket.startswith(str(tmp_path.resolve()))


def test_no_process_is_named_by_the_pid_that_it_has_in_another_container(tmp_path):
    here = endpoints.new_endpoint(tmp_path)
    there = msgspec.structs.replace(here, namespace="pid:[1]")
    texts = [
        str(no_answer(ConnectionTarget("grpc+unix:///x", "", "the log", each, tmp_path), 1.0))
        for each in (here, there)
    ]
    assert f"kill -9 {here.pid}" in texts[0]
    assert "in another container" in texts[1]
    assert "kill" not in texts[1]
