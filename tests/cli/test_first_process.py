"""Commands as the first process of a container, which no signal ends by default."""

from __future__ import annotations

import os
import signal

import pytest

from strandline.framework.cli.application import ended_by_sigterm

PID = os.getpid()


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)


def test_sigterm_ends_a_command_that_does_not_await_it(first: None) -> None:
    with pytest.raises(SystemExit) as ended, ended_by_sigterm():
        os.kill(PID, signal.SIGTERM)
        signal.pause()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_other_processes_keep_the_default_action() -> None:
    with ended_by_sigterm():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_action_that_the_program_chose_is_kept(first: None) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with ended_by_sigterm():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
