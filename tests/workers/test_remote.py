"""Workers that reach the log over the network: each has its own state, and all need the token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.changelog.errors import Unauthenticated
from strandline.changelog.flight.serve import serve
from tests.workers.pipeline import PARTITIONS, judge, pipeline, some
from tests.workers.test_assignment import Running

Eventually = Callable[..., None]
TOKEN = "sixteen-or-more-characters"


def test_workers_on_two_machines_share_and_take_over_from_each_other(
    tmp_path: Path, eventually: Eventually
) -> None:
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token=TOKEN, durability="os")
    try:
        url = f"{served.url}?token={TOKEN}"
        one, two = (Running(url, tmp_path / name) for name in ("one", "two"))
        eventually(lambda: len(one.numbers) == len(two.numbers) == PARTITIONS // 2)
        given = some(2_000)
        one.made.words.append(given)
        one.stop()
        eventually(lambda: len(two.numbers) == PARTITIONS, what="all at the second")
        more = some(1_000, start=2_000)
        two.made.words.append(more)
        eventually(lambda: judge(two.made, [*given, *more]) == [], what="all handled")
        assert (tmp_path / "two" / "pipeline" / "per-word").is_dir()
        two.stop()
        one.made.app.close()
        two.made.app.close()
    finally:
        served.close()


@pytest.mark.parametrize("token", ["", "?token=another-long-enough-token"])
def test_a_worker_without_the_token_is_refused(token: str, tmp_path: Path) -> None:
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token=TOKEN, durability="os")
    try:
        made = pipeline(f"{served.url}{token}", state_dir=tmp_path / "state")
        with pytest.raises(Unauthenticated):
            made.app.run(until="idle", progress=False)
        assert not (tmp_path / "state").exists()
    finally:
        served.close()
