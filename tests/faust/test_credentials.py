"""Faust workers on a cluster that asks who is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faust.faust_workers import FaustLog, eventually, worker
from tests.kafka.security import USERS, Secured
from tests.kafka.test_security import address, all_rights, grant, secured
from tests.systems import System

__all__ = ["address", "grant", "secured"]


@pytest.mark.parametrize("system", ["kafka"], indirect=True)
def test_a_worker_needs_the_rights_of_an_app_and_shows_no_password(
    system: System,
    log: FaustLog,
    secured: Secured,
    address: Callable[[str], str],
    grant: Callable[..., None],
    tmp_path: Path,
) -> None:
    all_rights(grant, "ada", system.prefix)
    log.create("posts", 2)
    log.append("posts", [{"value": json.dumps("the end").encode()}])
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
    }
    url = secured.url(address("SASL_SSL"), properties)
    as_ada = System("kafka", url, tmp_path, system.prefix)
    password = {"STRANDLINE_KAFKA": f"sasl.password={USERS['ada']}"}
    with worker("sample_word_count", as_ada, tmp_path, **password) as running:
        eventually(lambda: log.latest("wordcount-word_counts-changelog") == {"the": 1, "end": 1})
        assert running.stop() == 0
        assert USERS["ada"] not in running.text()
