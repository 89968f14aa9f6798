"""A key is found by its hash: an accepted one has a principal, any other none, and the file may
change while the gateway runs.
"""

from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.facts import AnyFact
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from services.api_gateway.access.auth import Keys, Principal, hash_key, new_key
from tests.history import History

ADA = Principal("k1", "physics", "ada", "member")


def known(
    keys: Keys, key: str, cluster: Cluster | None = None, now_ns: int = 1
) -> Principal | None:
    return keys.principal(key, cluster or Cluster(), now_ns)[0]


def created(secret: str, **fields: object) -> AnyFact:
    words = {
        "key_id": "k1",
        "tenant": TenantId("physics"),
        "user": "ada",
        "role": "member",
        **fields,
    }
    return f.KeyCreated(secret_hash=hash_key(secret), **words)  # type: ignore[arg-type]


def folded(*facts: AnyFact) -> Cluster:
    history = History()
    for fact in facts:
        history.say(fact)
    return history.cluster


def test_a_key_of_the_file_is_an_administrator_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{hash_key('one')} ann's laptop\n{hash_key('two').upper()}\n")
    keys = Keys(str(tmp_path / "keys"))
    assert known(keys, "one") == Principal(
        f"host-{hash_key('one')[:8]}", "default", "ann-s-laptop", "admin"
    )
    assert known(keys, "two") == Principal(
        f"host-{hash_key('two')[:8]}", "default", "host", "admin"
    )


def test_any_other_key_has_no_principal(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{hash_key('one')}\n")
    keys = Keys(str(tmp_path / "keys"))
    assert [known(keys, key) for key in ("", "two", "one ", hash_key("one"))] == [None] * 4
    assert known(Keys(""), "one") is None


def test_key_that_is_not_accepted_has_a_reason() -> None:
    cluster = folded(created("s", expires_ns=100))
    keys = Keys("")
    assert [keys.principal(key, cluster, 100) for key in ("", "other", hash_key("s"), "s")] == [
        (None, "no key"),
        (None, "the key is not known"),
        (None, "the key is not known"),
        (None, "key k1 has expired"),
    ]


def test_a_changed_file_counts_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hash_key('one')}\n")
    keys = Keys(str(path))
    path.write_text(f"{hash_key('two')} longer\n")
    keys.refresh()
    assert known(keys, "one") is None and known(keys, "two") is not None
    path.write_text("no hash")
    with pytest.raises(Refused, match="line 1"):
        keys.refresh()
    assert known(keys, "two") is not None


def test_a_key_of_the_log_counts_until_it_expires_or_is_revoked() -> None:
    keys = Keys("")
    assert known(keys, "s", folded(created("s"))) == ADA
    assert known(keys, "s", folded(created("s", expires_ns=100)), 99) == ADA
    assert keys.principal("s", folded(created("s", expires_ns=100)), 100) == (
        None,
        "key k1 has expired",
    )
    assert known(keys, "s", folded(created("s"), f.KeyRevoked(key_id="k1"))) is None


def test_a_key_that_is_revoked_in_the_same_fold_is_forgotten() -> None:
    history, keys = History(), Keys("")
    history.say(created("s"))
    assert known(keys, "s", history.cluster) == ADA
    history.say(f.KeyRevoked(key_id="k1"))
    assert known(keys, "s", history.cluster) is None


def test_an_old_secret_counts_for_its_grace_and_no_longer() -> None:
    keys, cluster = (
        Keys(""),
        folded(
            created("s"), f.KeyRotated(key_id="k1", secret_hash=hash_key("t"), old_until_ns=100)
        ),
    )
    assert [
        known(keys, "s", cluster, 99),
        known(keys, "s", cluster, 100),
        known(keys, "t", cluster, 100),
    ] == [ADA, None, ADA]
    at_once = folded(created("s"), f.KeyRotated(key_id="k1", secret_hash=hash_key("t")))
    assert [known(keys, "s", at_once), known(keys, "t", at_once)] == [None, ADA]


def test_a_removed_tenant_has_no_key_in_any_order_of_the_facts() -> None:
    removed = f.TenantSet(tenant=TenantId("physics"), removed=True)
    assert known(Keys(""), "s", folded(created("s"), removed)) is None
    assert known(Keys(""), "s", folded(removed, created("s"))) is None
    assert (
        known(Keys(""), "s", folded(removed, f.TenantSet(tenant=TenantId("physics")), created("s")))
        == ADA
    )


def test_no_two_keys_are_the_same_and_each_names_its_public_part() -> None:
    one, two = new_key("abc"), new_key("abc")
    assert one != two and one.startswith("msk_abc_")
