"""LiveCheck: a second process checks what happens to a request, by signals over the log."""

from __future__ import annotations

from pathlib import Path

from faust.livecheck.models import State

from strandline import changelog
from tests.faust.faust_workers import eventually, free_port, in_folder, page, rows, worker

PASSED = State.DO_NOT_SHARE.value


def test_a_check_passes_and_another_fails(tmp_path: Path) -> None:
    port = free_port()
    with (
        changelog.open(tmp_path / "log") as log,
        worker("sample_livecheck", in_folder(tmp_path), tmp_path, web=port) as shop,
        worker(
            "sample_livecheck",
            in_folder(tmp_path),
            tmp_path,
            command="livecheck",
            FAUST_DATA="check",
        ) as checker,
    ):
        eventually(lambda: page(port, "/order/first/buy/") == {"checked": True})
        eventually(lambda: "first" in [key for _, _, key, _ in rows(log, "executed")])

        def reports() -> dict[str, str]:
            found = [value for *_, value in rows(log, "livecheck-report")]
            return {one["test"]["id"]: one["state"] for one in found if one["test"]}

        eventually(lambda: reports().get("first") == PASSED)
        assert page(port, "/order/second/changed/") == {"checked": True}
        eventually(lambda: reports().get("second") == "FAIL")
        assert checker.stop() == 0
        assert shop.stop() == 0
