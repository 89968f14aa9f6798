"""The Unix user of a job: by the operator's table, else the tenant's own.

An agent that is not root takes jobs of few tenants.
"""

import os
import pwd
from pathlib import Path

import pytest

from libs.common.errors import Refused
from services.node_agent.directories import accounts
from services.node_agent.directories.accounts import own_tenants, parsed, shares_agent
from services.node_agent.directories.tenant_numbers import TenantNumbers

TABLE = {"team/ann": "daemon", "ann": "bin", "lab/*": "sys", "root": "self", "gone": "no-such-user"}


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_setting_is_parsed_and_an_invalid_one_is_refused() -> None:
    assert parsed(" team/ann=daemon , ann=bin,*=self") == {
        "team/ann": "daemon",
        "ann": "bin",
        "*": "self",
    }
    assert parsed("") == {}
    for wrong in ("ann", "ann=", "=ann"):
        with pytest.raises(Refused, match="MUSTER_JOB_USERS"):
            parsed(wrong)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("tenant", "user", "name"),
    [("team", "ann", "daemon"), ("other", "ann", "bin"), ("lab", "bob", "sys")],
)
def test_tenants_user_goes_before_a_user_and_a_user_before_a_tenant(
    tenant: str, user: str, name: str
) -> None:
    assert accounts.name_of(TABLE, tenant, user) == name
    assert not shares_agent(TABLE, tenant, user)
    found, known = accounts.account_of(TABLE, TenantNumbers(), tenant, user), pwd.getpwnam(name)
    assert (found.name, found.uid, found.ids[:2], found.home) == (
        name,
        known.pw_uid,
        [known.pw_uid, known.pw_gid],
        known.pw_dir,
    )
    assert found.environment["USER"] == found.environment["LOGNAME"] == name


@pytest.mark.usefixtures("root")
def test_jobs_of_an_agent_that_is_root_run_as_their_tenants_user(tmp_path: Path) -> None:
    numbers = TenantNumbers("c", "70000-70001", str(tmp_path / "table.json"))
    ann, bob, other = [
        accounts.account_of(TABLE, numbers, *who)
        for who in (("team", "bob"), ("team", "eve"), ("rival", "bob"))
    ]
    assert ann == bob and {ann.uid, other.uid} == {70_000, 70_001}
    assert (ann.name, ann.uid, ann.home) == ("team", ann.gid, "")
    assert not shares_agent({}, "default", "ann")


def test_the_ids_of_jobs_are_those_of_tenants_and_of_mapped_users() -> None:
    found = accounts.ids_of_jobs(TABLE, TenantNumbers("c", "70000-70001"))
    known = pwd.getpwnam("daemon")
    assert found[0] == (70_000, 70_001)
    assert {(known.pw_uid, known.pw_uid), (known.pw_gid, known.pw_gid)} <= set(found)
    assert (0, 0) not in found


def test_agent_that_is_not_root_takes_its_own_and_the_mapped_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    own = pwd.getpwuid(1).pw_name
    assert (
        shares_agent({}, "default", "ann")
        and shares_agent({"team/*": "self"}, "team", "ann")
        and shares_agent({"*": own}, "team", "ann")
    )
    with pytest.raises(
        Refused,
        match=r"no jobs of tenant team: its agent is not root.*MUSTER_JOB_USERS=team/\*=self",
    ):
        shares_agent({}, "team", "ann")
    with pytest.raises(Refused, match="the agent is not root, so it cannot change to another user"):
        shares_agent({"default/*": "bin"}, "default", "ann")
    assert own_tenants({}) == ["default"]
    assert own_tenants({"team/*": "self", "lab/ann": own, "x/*": "bin"}) == [
        "default",
        "lab",
        "team",
    ]
    assert own_tenants({"default/*": "bin"}) == []
    assert own_tenants({"*": "self"}) is own_tenants({"ann": "self"}) is None
    assert accounts.lost({"*": "self"}, TenantNumbers()).endswith("it takes jobs of all tenants")


@pytest.mark.usefixtures("root")
def test_all_others_may_be_named_and_self_is_the_agent_s_own_user() -> None:
    assert accounts.name_of({"*": "daemon"}, "team", "bob") == "daemon"
    assert accounts.name_of(TABLE, "team", "root") == "self" and shares_agent(TABLE, "team", "root")


@pytest.mark.usefixtures("root")
def test_job_of_a_user_that_the_machine_lacks_is_refused() -> None:
    with pytest.raises(Refused, match="cannot run as user no-such-user"):
        accounts.account(accounts.name_of(TABLE, "team", "gone"))


def test_reason_for_missing_isolation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    own = pwd.getpwuid(1).pw_name
    shared = (
        f"the agent is not root: every job runs as its user {own} and can read its key; it takes "
        "jobs of default only"
    )
    assert accounts.lost({}, TenantNumbers()) == shared
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert accounts.lost({}, TenantNumbers()) == ""
    assert accounts.lost(TABLE, TenantNumbers()).startswith(
        "MUSTER_JOB_USERS lets jobs run as root"
    )


def test_user_without_a_name_is_shown_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 987_654)
    assert "its user 987654 " in accounts.lost({}, TenantNumbers())


@pytest.mark.usefixtures("root")
def test_root_by_any_name_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accounts.lost({"*": "root"}, TenantNumbers()).startswith(
        "MUSTER_JOB_USERS lets jobs run as root"
    )
    assert accounts.lost({"*": "daemon", "gone": "no-such-user"}, TenantNumbers()) == ""
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.getpwuid(0))
    assert accounts.lost({"ann": "toor"}, TenantNumbers()).startswith(
        "MUSTER_JOB_USERS lets jobs run as root"
    )
