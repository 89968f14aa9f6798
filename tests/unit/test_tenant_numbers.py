"""Each tenant gets one user id for ever, which no other tenant of the machine gets."""

import os
from pathlib import Path

import msgspec
import pytest

from libs.common.errors import Refused
from services.node_agent.directories import tenant_numbers
from services.node_agent.directories.tenant_numbers import TenantNumbers, bounds


def numbers(folder: Path, span: str = "70000-70009", cluster: str = "c") -> TenantNumbers:
    return TenantNumbers(cluster, span, str(folder / "machine" / "table.json"))


def test_each_tenant_of_each_cluster_has_an_id_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    given = {
        (cluster, tenant): numbers(tmp_path, cluster=cluster).number(tenant)
        for cluster in "cd"
        for tenant in ("a", "b", "e")
    }
    assert len(set(given.values())) == 6 and all(70_000 <= uid <= 70_009 for uid in given.values())
    assert {
        (cluster, tenant): numbers(tmp_path, cluster=cluster).number(tenant)
        for cluster, tenant in given
    } == given


def test_an_id_is_never_given_to_another_tenant_not_even_after_the_range_changed(
    tmp_path: Path,
) -> None:
    before = numbers(tmp_path, "70000-70000").number("a")
    assert numbers(tmp_path, "70001-70001").number("a") == 70_001
    with pytest.raises(Refused, match="no user id is left for c/b in 70000-70001"):
        numbers(tmp_path, "70000-70001").number("b")
    assert before == 70_000


def test_an_id_that_a_user_of_the_machine_has_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_numbers, "_is_a_user", lambda uid: uid == 70_000)
    assert numbers(tmp_path, "70000-70001").number("a") == 70_001


def test_a_table_that_cannot_be_read_refuses_jobs_and_is_not_replaced(tmp_path: Path) -> None:
    table = tmp_path / "machine" / "table.json"
    table.parent.mkdir()
    table.write_text("broken")
    with pytest.raises(Refused, match=r"cannot be used.*MUSTER_TENANT_UID_TABLE"):
        numbers(tmp_path).number("a")
    assert table.read_text() == "broken"


@pytest.mark.parametrize("span", ["", "1", "0-5", "9-5", "a-b", "70000-4294967295", "-1-5"])
def test_invalid_range_is_refused(span: str) -> None:
    with pytest.raises(Refused, match="MUSTER_TENANT_UIDS"):
        bounds(span)


def test_a_range_that_a_container_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = tmp_path / "uid_map"
    mapped.write_text("         0       1000          1\n         1     100000      65536\n")
    monkeypatch.setattr(tenant_numbers, "UID_MAP", str(mapped))
    assert bounds("2-65536") == (2, 65_536)
    with pytest.raises(Refused, match="does not exist in this container"):
        bounds("70000-99999")
    monkeypatch.setattr(tenant_numbers, "UID_MAP", str(tmp_path / "none"))
    assert bounds("70000-99999") == (70_000, 99_999)


def test_a_killed_agent_leaves_a_table_that_the_next_one_reads(tmp_path: Path) -> None:
    uid = numbers(tmp_path).number("a")
    (tmp_path / "machine" / "table.draft").write_bytes(b"{torn")
    assert numbers(tmp_path).number("a") == uid
    assert msgspec.json.decode((tmp_path / "machine" / "table.json").read_bytes()) == {"c/a": uid}
    assert tenant_numbers._is_a_user(os.geteuid())
