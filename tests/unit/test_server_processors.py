"""How many processors the nats-server of an embedded cluster uses."""

import os

import pytest

from libs.embedded import servers


def test_a_server_of_few_nodes_uses_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(servers.PROCESSORS, raising=False)
    assert servers.environment(servers.FEW_NODES) == {"GOMAXPROCS": "1"}


def test_a_server_of_many_nodes_uses_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(servers.PROCESSORS, raising=False)
    assert servers.environment(servers.FEW_NODES + 1) == {"GOMAXPROCS": str(os.cpu_count())}


def test_the_user_s_own_value_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(servers.PROCESSORS, "7")
    assert servers.environment(1) == servers.environment(10_000) == {"GOMAXPROCS": "7"}
