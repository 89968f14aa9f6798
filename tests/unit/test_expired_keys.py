"""Expired keys do not count towards the limit of keys, and leave the state."""

import pytest

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Stamp
from libs.common.errors import Refused
from libs.common.folds import key_fold
from libs.common.folds.key_fold import (
    EXPIRED_STAY_MIN_NS,
    EXPIRED_STAY_NS,
    SWEEP_NS,
)
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from services.api_gateway.intents import identity_intents
from services.api_gateway.intents.identity_intents import key_creation


def create(cluster: Cluster, key_id: str, expires_ns: int = 0, at_ns: int = 0) -> None:
    fact = f.KeyCreated(
        key_id=key_id,
        secret_hash="x",
        tenant=TenantId("default"),
        user="ada",
        role="member",
        expires_ns=expires_ns,
    )
    stamp = Stamp(cluster.seq + 1, at_ns, 0, subjects.GATEWAY_KIND, "a")
    fold.apply(cluster, fact, stamp)


def test_a_key_leaves_the_state_when_a_key_is_created_30_days_after_its_expiry() -> None:
    cluster = Cluster()
    create(cluster, "short", expires_ns=7)
    create(cluster, "for ever")
    create(cluster, "early", at_ns=7 + EXPIRED_STAY_NS - 1)
    assert list(cluster.keys) == ["short", "for ever", "early"]
    create(cluster, "late", at_ns=7 + EXPIRED_STAY_NS + SWEEP_NS)
    assert list(cluster.keys) == ["for ever", "early", "late"]


def test_only_the_keys_that_expired_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_fold, "EXPIRED_MAX", 2)
    cluster = Cluster()
    for number, expires_ns in enumerate((30, 10, 20, 40)):
        create(cluster, f"k{number}", expires_ns=expires_ns)
    create(cluster, "new", at_ns=9 + EXPIRED_STAY_MIN_NS)
    assert list(cluster.keys) == ["k0", "k1", "k2", "k3", "new"]
    create(cluster, "newer", at_ns=40 + EXPIRED_STAY_MIN_NS + SWEEP_NS)
    assert list(cluster.keys) == ["k0", "k3", "new", "newer"]


def test_the_newest_expired_keys_stay_however_many_are_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example by a pipeline that creates a key for each of its jobs."""
    kept, sweep, valid = 100, 10, 60
    monkeypatch.setattr(key_fold, "EXPIRED_KEPT", kept)
    monkeypatch.setattr(key_fold, "SWEEP_KEYS", sweep)
    cluster, most = Cluster(), 0
    for number in range(1_000):
        create(cluster, f"k{number}", expires_ns=number + valid, at_ns=number)
        most = max(most, len(cluster.keys))
    assert kept + valid <= most <= kept + valid + sweep
    newest = [f"k{number}" for number in range(1_000 - kept - valid, 1_000)]
    assert list(cluster.keys)[-kept - valid :] == newest


def test_a_gateway_whose_clock_is_far_ahead_removes_no_valid_key() -> None:
    cluster, hour_ns = Cluster(), 3_600_000_000_000
    for number in range(identity_intents.KEYS_MAX):
        create(cluster, f"k{number}", expires_ns=hour_ns)
    create(cluster, "ahead", at_ns=23 * hour_ns)
    assert len(cluster.keys) == identity_intents.KEYS_MAX + 1


def test_expired_keys_are_looked_for_once_a_minute_and_with_every_1000th_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_fold, "EXPIRED_KEPT", 0)
    monkeypatch.setattr(key_fold, "SWEEP_KEYS", 4)
    cluster = Cluster()
    create(cluster, "short", expires_ns=7)
    for number in range(3):
        create(cluster, f"k{number}", at_ns=8)
    assert list(cluster.keys) == ["short", "k0", "k1", "k2"]
    create(cluster, "fourth", expires_ns=9, at_ns=8)
    assert list(cluster.keys) == ["k0", "k1", "k2", "fourth"]
    monkeypatch.setattr(key_fold, "SWEEP_KEYS", 100)
    create(cluster, "same minute", at_ns=10)
    create(cluster, "next minute", at_ns=SWEEP_NS)
    assert list(cluster.keys) == ["k0", "k1", "k2", "same minute", "next minute"]


def test_an_ignored_key_removes_none() -> None:
    cluster = Cluster()
    create(cluster, "short", expires_ns=7)
    create(cluster, "again")
    create(cluster, "again", at_ns=7 + EXPIRED_STAY_NS + SWEEP_NS)
    assert list(cluster.keys) == ["short", "again"]


def test_expired_keys_do_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_intents, "KEYS_MAX", 2)
    cluster = Cluster()
    create(cluster, "short", expires_ns=7)
    create(cluster, "for ever")
    with pytest.raises(Refused, match="has 2 keys that have not expired, the maximum: revoke"):
        key_creation({"user": "ada"}, cluster, "default", now_ns=6)
    assert key_creation({"user": "ada"}, cluster, "default", now_ns=7).user == "ada"
