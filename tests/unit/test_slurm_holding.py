"""Allocations are given back when a signal ends the program that holds them."""

import os
import signal
from datetime import UTC, datetime

import pytest

from libs.cli.slurm.holding import end_of, ended_by_signals
from libs.cli.slurm.scontrol import main as scontrol
from libs.cli.slurm.times import instant, parse_when
from libs.common.errors import Refused


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_runs_what_gives_back_and_a_second_one_does_not_stop_it(number: int) -> None:
    # Tests that run under nohup inherit an ignored SIGHUP.
    before = signal.signal(number, signal.SIG_DFL)
    released = False
    try:
        with pytest.raises(SystemExit) as caught, ended_by_signals():
            try:
                os.kill(os.getpid(), number)
                signal.pause()
            finally:
                os.kill(os.getpid(), number)
                released = True
        assert released and caught.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_end_of_an_allocation_is_shown() -> None:
    at = parse_when("2026-03-04T05:06:07", datetime(2026, 3, 4, tzinfo=UTC))
    assert end_of({"expires_at": at.isoformat()}) == f" until {instant(at)}"
    assert end_of({"expires_at": None}) == ""


def test_hostnames_are_those_of_the_list_or_of_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node-[1-2]")
    assert scontrol(["show", "hostnames"]) == 0
    assert scontrol(["show", "hostnames", "a,b"]) == 0
    assert capsys.readouterr().out == "node-1\nnode-2\na\nb\n"
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    for words in (["show", "hostnames"], ["show", "hostnames", "a["]):
        with pytest.raises(Refused, match="nodes"):
            scontrol(words)
