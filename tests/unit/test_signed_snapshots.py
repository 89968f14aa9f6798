"""Snapshots with signatures: which one is taken, and what the reader says of one that is not."""

import nkeys
import pytest

from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from libs.common.transport.signed_snapshots import SignedSnapshots
from libs.common.transport.snapshot_store import (
    BASE_HEAD_OBJECT,
    BASE_OBJECT,
    CLUSTER_OBJECT,
    MemorySnapshots,
)

TRIMMER, READER = (
    nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER) for number in (1, 2)
)
PUBLIC = SignedSnapshots(MemorySnapshots(), TRIMMER, "").public


def state(seq: int) -> bytes:
    return snapshot.encode(Cluster(cluster_id="c", seq=seq))


async def test_older_base_is_refused_after_a_newer_one_was_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = MemorySnapshots()
    trimmer, reader = (
        SignedSnapshots(bucket, TRIMMER, PUBLIC),
        SignedSnapshots(bucket, READER, PUBLIC),
    )
    await trimmer.put(BASE_OBJECT, state(3))
    older = bucket.objects[BASE_OBJECT]
    assert await reader.get(BASE_OBJECT) == state(3)
    await trimmer.put(BASE_OBJECT, state(7))
    assert await reader.get(BASE_OBJECT) == state(7) == await reader.get(BASE_OBJECT)
    bucket.objects[BASE_OBJECT] = older
    assert await reader.get(BASE_OBJECT) is None and await trimmer.get(BASE_OBJECT) is None
    assert "base of commit 3 is not used: one of commit 7 was stored before" in caplog.text
    await trimmer.put(BASE_OBJECT, state(9))
    assert await reader.get(BASE_OBJECT) == state(9)


async def test_base_of_another_version_hides_no_older_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = MemorySnapshots()
    trimmer, reader = (
        SignedSnapshots(bucket, TRIMMER, PUBLIC),
        SignedSnapshots(bucket, READER, PUBLIC),
    )
    await trimmer.put(BASE_OBJECT, state(7))
    newer = bucket.objects[BASE_OBJECT]
    assert await reader.get(BASE_OBJECT) == state(7)
    await trimmer.put(BASE_OBJECT, b"of another version")
    assert await reader.get(BASE_OBJECT) == b"of another version"
    assert "put it back" not in caplog.text
    await SignedSnapshots(bucket, TRIMMER, PUBLIC).put(BASE_OBJECT, state(3))
    assert await reader.get(BASE_OBJECT) is None
    bucket.objects[BASE_OBJECT] = newer
    assert await reader.get(BASE_OBJECT) == state(7)


async def test_unused_base_is_reported_with_the_reason_and_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = MemorySnapshots()
    bucket.objects[BASE_OBJECT] = state(3)
    assert await SignedSnapshots(bucket, READER, PUBLIC).get(BASE_OBJECT) is None
    assert (
        f"base is not used: it is not signed by the trimmer {PUBLIC} (MUSTER_TRIMMER_KEY_FILE)"
        in caplog.text
    )
    assert "leave audit running until its trimmer has folded the archive" in caplog.text
    caplog.clear()
    assert await SignedSnapshots(bucket, READER, "").get(BASE_OBJECT) is None
    assert "set MUSTER_TRIMMER_KEY_FILE to the file with the trimmer's public nkey" in caplog.text


async def test_unsigned_own_snapshot_is_replaced_by_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = MemorySnapshots()
    reader = SignedSnapshots(bucket, READER, PUBLIC)
    bucket.objects[f"{CLUSTER_OBJECT}.{reader.public}"] = state(3)
    assert await reader.get(CLUSTER_OBJECT) is None
    assert (
        f"cluster is not used: it is not signed by this process's key {reader.public}; the "
        "log is folded instead"
    ) in caplog.text
    await reader.put(CLUSTER_OBJECT, state(5))
    await reader.put(CLUSTER_OBJECT, state(4))
    assert await reader.get(CLUSTER_OBJECT) == state(4)


async def test_a_head_is_the_trimmers_and_an_older_one_is_not_used() -> None:
    bucket = MemorySnapshots()
    trimmer = SignedSnapshots(bucket, TRIMMER, PUBLIC)
    reader = SignedSnapshots(bucket, READER, PUBLIC)
    await trimmer.put(BASE_OBJECT, state(7))
    await trimmer.put(BASE_HEAD_OBJECT, snapshot.head(state(7)))
    older = bucket.objects[BASE_HEAD_OBJECT]
    head = await reader.get(BASE_HEAD_OBJECT)
    assert head is not None and snapshot.seq_of(head) == 7
    await trimmer.put(BASE_HEAD_OBJECT, snapshot.head(state(9)))
    assert await reader.get(BASE_HEAD_OBJECT) is not None
    bucket.objects[BASE_HEAD_OBJECT] = older
    assert await reader.get(BASE_HEAD_OBJECT) is None
    await reader.put(BASE_HEAD_OBJECT, snapshot.head(state(11)))
    assert await reader.get(BASE_HEAD_OBJECT) is None
