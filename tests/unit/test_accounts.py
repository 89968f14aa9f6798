"""As whom a job runs: by the operator's table; who is not in it is nobody."""

import os
import pwd

import pytest

from libs.common.errors import Refused
from services.node_agent import accounts
from services.node_agent.accounts import parsed

TABLE = {"team/ann": "daemon", "ann": "bin", "root": "self", "gone": "no-such-user"}


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_the_setting_is_a_table_and_what_is_none_is_refused() -> None:
    assert parsed(" team/ann=daemon , ann=bin,*=self") == {"team/ann": "daemon", "ann": "bin", "*": "self"}
    assert parsed("") == {}
    for wrong in ("ann", "ann=", "=ann"):
        with pytest.raises(Refused, match="MUSTER_JOB_USERS"):
            parsed(wrong)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("tenant", "user", "name"), [("team", "ann", "daemon"), ("other", "ann", "bin"), ("team", "bob", "nobody"), ("team", "*", "nobody")]
)
def test_a_tenant_s_user_goes_before_a_user_and_who_is_not_named_is_nobody(tenant: str, user: str, name: str) -> None:
    assert accounts.name_of(TABLE, tenant, user) == name
    found, known = accounts.account(name), pwd.getpwnam(name)
    assert (found.name, found.uid, found.ids[:2], found.home) == (name, known.pw_uid, [known.pw_uid, known.pw_gid], known.pw_dir)
    assert found.environment["USER"] == found.environment["LOGNAME"] == name


@pytest.mark.usefixtures("root")
def test_all_others_may_be_named_and_self_is_the_agent_s_own_user() -> None:
    assert accounts.name_of({"*": "daemon"}, "team", "bob") == "daemon"
    assert accounts.name_of(TABLE, "team", "root") == ""


@pytest.mark.usefixtures("root")
def test_a_user_that_the_machine_does_not_have_refuses_the_job() -> None:
    with pytest.raises(Refused, match="is to run as no-such-user"):
        accounts.account(accounts.name_of(TABLE, "team", "gone"))


def test_what_is_lost_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert accounts.name_of(TABLE, "team", "ann") == ""
    assert accounts.lost({}) == f"the agent is not root: every job runs as its user {pwd.getpwuid(1).pw_name}"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert accounts.lost({}) == ""
    assert accounts.lost(TABLE) == "MUSTER_JOB_USERS lets jobs run as root"


def test_a_user_without_a_name_is_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 987_654)
    assert accounts.lost({}) == "the agent is not root: every job runs as its user 987654"


@pytest.mark.usefixtures("root")
def test_root_by_any_name_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accounts.lost({"*": "root"}) == "MUSTER_JOB_USERS lets jobs run as root"
    assert accounts.lost({"*": "daemon", "gone": "no-such-user"}) == ""
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.getpwuid(0))
    assert accounts.lost({"ann": "toor"}) == "MUSTER_JOB_USERS lets jobs run as root"
