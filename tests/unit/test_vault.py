"""Secrets at rest: opened with the vault's key only, in their own tenant's and name's
place only.
"""

import asyncio
import base64
from pathlib import Path

import msgspec
import pytest
from nacl.public import PrivateKey, SealedBox

from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.model import JobId
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.revisions import Kept
from services.api_gateway.secrets.vault import ABANDONED_NS, PLACES, Vault, sealed_to

VALUE = "correct horse battery staple"


def vault(tmp_path: Path, byte: bytes = b"k", store: MemoryOutputs | None = None) -> Vault:
    path = tmp_path / f"{byte.decode()}.key"
    path.write_bytes(base64.b64encode(byte * 32) + b"\n")
    return Vault(str(path), store or MemoryOutputs())


async def test_a_value_comes_back_and_does_not_stand_in_the_bucket(tmp_path: Path) -> None:
    store = MemoryOutputs()
    kept = vault(tmp_path, store=store)
    await kept.put("physics", "hf-token", VALUE)
    assert await kept.get("physics", "hf-token") == VALUE
    assert VALUE.encode() not in b"".join(store.values.values())


async def test_missing_or_removed_secret_is_none(tmp_path: Path) -> None:
    kept = vault(tmp_path)
    assert await kept.get("physics", "x") is None
    await kept.put("physics", "x", VALUE)
    await kept.remove("physics", "x")
    assert await kept.get("physics", "x") is None


async def test_another_key_opens_nothing(tmp_path: Path) -> None:
    store = MemoryOutputs()
    await vault(tmp_path, store=store).put("physics", "x", VALUE)
    with pytest.raises(Corrupt):
        await vault(tmp_path, b"j", store).get("physics", "x")


@pytest.mark.parametrize("place", ["chemistry.x", "physics.y"])
async def test_a_value_moved_to_another_place_is_found_out(tmp_path: Path, place: str) -> None:
    store = MemoryOutputs()
    kept = vault(tmp_path, store=store)
    await kept.put("physics", "x", VALUE)
    store.values[place] = store.values["physics.x"]
    with pytest.raises(Corrupt):
        await kept.get(*place.split("."))


async def test_a_further_value_replaces_none_that_is_in_use(tmp_path: Path) -> None:
    store = MemoryOutputs()
    kept, ids = vault(tmp_path, store=store), [""]
    for number in range(PLACES):
        ids.append(await kept.add("physics", "x", f"v{number}", ids[-1], number))
    assert [await kept.get("physics", "x", each) for each in ids[1:]] == [
        f"v{number}" for number in range(PLACES)
    ]
    with pytest.raises(Unavailable, match="was not set"):
        await kept.add("physics", "x", VALUE, ids[-1], PLACES)
    await kept.remove("physics", "x", ids[3])
    added = await kept.add("physics", "x", VALUE, ids[-1], PLACES)
    assert added[0] == ids[3][0] and await kept.get("physics", "x", added) == VALUE
    assert await kept.get("physics", "x", ids[3]) is None
    await kept.remove("physics", "x", ids[3])
    assert await kept.get("physics", "x", added) == VALUE and len(store.values) == PLACES


async def test_a_value_that_was_left_behind_is_replaced_after_an_hour(tmp_path: Path) -> None:
    store = MemoryOutputs()
    kept, ids = vault(tmp_path, store=store), [""]
    for _ in range(PLACES):
        ids.append(await kept.add("physics", "x", VALUE, ids[-1], 0))
    added = await kept.add("physics", "x", "new", ids[1], ABANDONED_NS)
    assert added[0] == ids[2][0] and await kept.get("physics", "x", ids[1]) == VALUE
    with pytest.raises(Unavailable):
        await vault(tmp_path, b"j", store).add("physics", "x", VALUE, ids[1], 9 * ABANDONED_NS)


async def test_of_two_values_at_one_place_one_is_stored_elsewhere(tmp_path: Path) -> None:
    class Racing(MemoryOutputs):
        async def kept(self, key: str) -> Kept:
            found = await super().kept(key)
            await asyncio.sleep(0)
            return found

    kept = vault(tmp_path, store=Racing())
    ids = await asyncio.gather(*(kept.add("physics", "x", f"v{n}", "", 0) for n in range(3)))
    assert [await kept.get("physics", "x", each) for each in ids] == ["v0", "v1", "v2"]


def test_a_replaced_key_file_ends_sessions_and_a_faulty_one_changes_nothing(
    tmp_path: Path,
) -> None:
    kept = vault(tmp_path)
    kept.refresh()  # no session needed the key yet
    first = kept.session_key()
    Path(kept.key_file).write_text("c2hvcnQ=")
    with pytest.raises(Refused, match="is not a vault key"):
        kept.refresh()
    assert kept.session_key() == first
    Path(kept.key_file).write_bytes(base64.b64encode(b"n" * 32))
    kept.refresh()
    assert kept.session_key() not in (first, b"")


async def test_without_a_usable_key_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "short.key").write_text("c2hvcnQ=")
    for name in ("", str(tmp_path / "none"), str(tmp_path / "short.key")):
        with pytest.raises(Refused):
            await Vault(name, MemoryOutputs()).put("physics", "x", VALUE)


def test_an_answer_opens_with_the_asker_s_key_only() -> None:
    private = PrivateKey.generate()
    sealed = sealed_to(bytes(private.public_key), {"TOKEN": VALUE})
    assert VALUE.encode() not in sealed
    assert msgspec.msgpack.decode(SealedBox(private).decrypt(sealed)) == {"TOKEN": VALUE}
    with pytest.raises(Refused):
        sealed_to(b"short", {})


async def test_each_attempt_of_a_replica_has_a_key_of_its_own_without_the_bucket(
    tmp_path: Path,
) -> None:
    store = MemoryOutputs()
    kept, again, other = vault(tmp_path, store=store), vault(tmp_path), vault(tmp_path, b"j")
    keys = [
        kept.replica_key(JobId("chat-1"), 1),
        kept.replica_key(JobId("chat-1"), 2),
        kept.replica_key(JobId("chat-2"), 1),
        other.replica_key(JobId("chat-1"), 1),
    ]
    assert len(set(keys)) == 4 and {len(key) for key in keys} == {64}
    assert again.replica_key(JobId("chat-1"), 1) == keys[0]
    assert store.values == {}


def test_a_gateway_without_a_key_file_has_no_keys_of_replicas() -> None:
    with pytest.raises(Refused, match="MUSTER_VAULT_KEY_FILE"):
        Vault("", MemoryOutputs()).replica_key(JobId("chat-1"), 1)
