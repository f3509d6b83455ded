"""The command as a process: versions, exit codes, pipes, Ctrl-C, served logs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from strandline import changelog
from strandline.changelog import signals
from strandline.changelog.log import Log
from strandline.framework.cli.reporting import without_debug
from tests.cli.conftest import Command

STRANDLINE = [sys.executable, "-m", "strandline"]


def run(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    environment.pop("STRANDLINE_LOG", None)
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*STRANDLINE, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def test_version_and_help_are_shown(strandline: Command) -> None:
    assert strandline("--version").out.startswith("strandline")
    nothing, help_ = strandline(), strandline("--help").out
    assert "Usage" in nothing.out + nothing.err
    for word in ("run", "serve", "topics", "produce", "consume", "groups", "segments", "stores"):
        assert word in help_


@pytest.mark.parametrize(
    "arguments", [("tpoics",), ("topics", "lst"), ("topics", "list", "--jsno")]
)
def test_a_wrong_command_line_exits_with_2(strandline: Command, arguments: tuple[str, ...]) -> None:
    assert strandline(*arguments).code == 2


@pytest.mark.long
def test_a_log_must_be_named_unless_it_is_in_the_folder_data(tmp_path: Path) -> None:
    done = run("topics", "list", cwd=tmp_path)
    assert done.returncode == 2
    assert "--log" in done.stderr
    assert run("topics", "create", "t", "--log", "data", cwd=tmp_path).returncode == 0
    done = run("topics", "list", "--json", cwd=tmp_path)
    assert [row["topic"] for row in msgspec.json.decode(done.stdout)] == ["t"]


def test_a_folder_without_a_log_is_not_changed(strandline: Command, tmp_path: Path) -> None:
    outcome = strandline("topics", "list", "--log", str(tmp_path / "nowhere"))
    assert (outcome.code, "no folder" in outcome.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_log_in_a_subfolder_is_suggested(log: Log, strandline: Command, folder: Path) -> None:
    outcome = strandline("topics", "list", "--log", str(folder.parent))
    assert outcome.code == 1
    assert f"did you mean {folder}?" in outcome.err


@pytest.mark.long
def test_debug_shows_the_traceback(log: Log, folder: Path) -> None:
    arguments = ("topics", "describe", "nowhere", "--log", str(folder))
    done = run(*arguments, cwd=folder)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    done = run(*arguments, "--debug", cwd=folder)
    assert (done.returncode, "Traceback" in done.stderr) == (1, True)


def test_an_error_of_the_users_module_has_a_traceback_of_the_users_code(tmp_path: Path) -> None:
    module = tmp_path / "shop.py"
    module.write_text("import json\n\ndef main():\n    json.loads('{')\n\nmain()\n")
    done = run("run", "shop:app", "--log", "data", cwd=tmp_path)
    files = re.findall(r'File "(.*)", line', done.stderr)
    assert (done.returncode, files[:2]) == (1, [str(module), str(module)]), done.stderr
    assert "JSONDecodeError" in done.stderr.splitlines()[-1]
    whole = run("run", "shop:app", "--log", "data", "--debug", cwd=tmp_path)
    assert (whole.returncode, "load_app" in whole.stderr) == (1, True)


def test_debug_after_two_dashes_is_an_argument() -> None:
    assert without_debug(["get", "--", "--debug"]) == (["get", "--", "--debug"], False)


def test_a_closed_pipe_ends_the_command_quietly(log: Log, folder: Path) -> None:
    log.create_topic("numbers")
    log.append("numbers", [{"value": b"x" * 100} for _ in range(20_000)])
    command = " ".join([*STRANDLINE, "consume", "numbers", "--log", str(folder)])
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {command} | head -n 1"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert msgspec.json.decode(done.stdout)["offset"] == 0


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        ("> /dev/full", 1, "StorageFailed: cannot write the output: No space left on device\n"),
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a device")
def test_output_that_cannot_be_written_ends_the_command_without_a_traceback(
    log: Log, folder: Path, redirected: str, code: int, said: str
) -> None:
    log.create_topic("numbers")
    command = " ".join([*STRANDLINE, "topics", "list", "--log", str(folder)])
    done = subprocess.run(
        ["/bin/bash", "-c", f"{command} {redirected}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_ctrl_c_ends_the_command_quietly(log: Log, folder: Path) -> None:
    log.create_topic("numbers")
    log.append("numbers", [{"value": b"first"}])
    process = started("consume", "numbers", "--follow", "--log", str(folder))
    assert process.stdout is not None
    assert "first" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


def test_a_log_served_over_tcp_is_used_by_its_url(
    folder: Path, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started("serve", str(folder), "--create", "--listen", "127.0.0.1:0", "--json")
    try:
        assert process.stdout is not None
        served = msgspec.json.decode(process.stdout.readline())
        remote = ("--log", f"{served['url']}?token={served['token']}")
        assert strandline("topics", "create", "orders", *remote).code == 0
        assert strandline("produce", "orders", *remote, stdin='{"value": "hi"}').code == 0
        [record] = strandline("consume", "orders", *remote).lines
        assert record["value"] == "hi"
        outcome = strandline("topics", "list", "--log", f"{served['url']}?token=wrong")
        assert (outcome.code, "Unauthenticated" in outcome.err) == (1, True)
    finally:
        stop(process)


def test_the_token_of_a_served_log_is_in_a_file_and_not_in_a_process_title(
    folder: Path, strandline: Command, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("sixteen-or-more-characters\n")
    process = started(
        *("serve", str(folder), "--create", "--listen", "127.0.0.1:0", "--json"),
        *("--token-file", str(file)),
    )
    try:
        assert process.stdout is not None
        served = msgspec.json.decode(process.stdout.readline())
        assert served["token"] is None
        remote = ("--log", f"{served['url']}?token-file={file}")
        assert strandline("topics", "create", "orders", *remote).code == 0
        outcome = strandline("topics", "list", "--log", f"{served['url']}?token=wrong")
        assert "Unauthenticated" in outcome.err
    finally:
        stop(process)


def test_a_log_is_served_to_this_machine(
    folder: Path, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_TOKEN", "of another log that is served elsewhere")
    process = started("serve", str(folder), "--create", "--json")
    try:
        assert process.stdout is not None
        assert msgspec.json.decode(process.stdout.readline())["url"] == str(folder)
        assert strandline("topics", "create", "orders").code == 0
    finally:
        stop(process)
    with changelog.open(folder, role="own") as log:
        assert [info.name for info in log.topics()] == ["orders"]


def test_simultaneous_signals_end_the_command_like_one() -> None:
    """A second signal during the handling of the first must not wait for it for ever."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    main_thread = threading.get_ident()

    def both() -> None:
        for number in numbers:
            signal.pthread_kill(main_thread, number)

    try:
        for _ in range(200):
            sender = threading.Timer(0.0, both)
            with signals.awaited(*numbers) as came:
                sender.start()
                assert signals.wait(came) in numbers
                sender.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_serving_options_need_an_address(strandline: Command, folder: Path) -> None:
    assert strandline("serve", str(folder), "--token-file", "token").code == 2
    outcome = strandline("serve", str(folder), "--listen", "0.0.0.0:0")
    assert (outcome.code, "--tls-cert" in outcome.err) == (2, True)


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(
        [*STRANDLINE, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
