"""A snapshot of the cluster's state: format version, cluster id, sequence, state.

Pure: bytes in, bytes out; `snapshot_store.py` stores them. A reader starts from a snapshot and
folds the rest of the log. A snapshot of another version is not an error: the reader folds the whole
log. tests/unit/test_snapshot.py checks that a snapshot and the rest equal the fold of everything,
and that the version is raised when facts or the state get other fields: a build that does not know
a field drops it, and stores the rest.
"""

import hashlib
from typing import Final

import msgspec

from libs.common.errors import Corrupt
from libs.common.state.cluster import Cluster

# 2: the attempts that are not charged yet. 4: what is held of hosts, and what nodes have. 5: order.
# 6: allocations, arrays, plug-ins, preemption. 7: gangs of more than one size, that grow, service
# of devices, isolation of nodes. 8: controls of devices. 9: images of jobs: a reader that
# did not know them has dropped them. 10: dependencies by job, and their number by tenant. 11:
# claims on devices, what was ignored of nodes. 12: memory pools. 13: names and guests of models.
# 14: keys of replicas, limits of keys and of tenants at models, adapters of models.
# 16: whether the jobs of a lost node have ended.
# 17: locks, lives of a restored cluster, lease profiles, recorded hashes.
# 18: prices, idle jobs, notifications, diagnoses, nodes that are held back, batches of short
# arrays, lenders. 19: how many models a tenant may deploy. 20: records of undeployed models,
# armed hardware watchdogs, the name of the last restore. 21: models that recovered from crashes.
# 22: a removed tenant has no deployed models and no resident data; agents that were replaced
# without a lease watchdog.
SNAPSHOT_VERSION: Final = 22


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    version: int
    cluster_id: str
    seq: int
    digest: bytes
    state: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)


def encode(cluster: Cluster) -> bytes:
    """Return the state as bytes, with a digest."""
    state = _encoder.encode(cluster)
    digest = hashlib.sha256(state).digest()
    return _encoder.encode(
        _Snapshot(
            version=SNAPSHOT_VERSION,
            cluster_id=cluster.cluster_id,
            seq=cluster.seq,
            digest=digest,
            state=msgspec.Raw(state),
        )
    )


def decode(data: bytes) -> Cluster | None:
    """Return the state; None if another version wrote it: then fold the log.

    Raises Corrupt if the bytes are damaged.
    """
    try:
        head = _decoder.decode(data)
        if head.version != SNAPSHOT_VERSION:
            return None
        if hashlib.sha256(bytes(head.state)).digest() != head.digest:
            raise Corrupt(
                "the snapshot does not match its own digest: delete it, the log is folded instead"
            )
        return msgspec.msgpack.decode(head.state, type=Cluster)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the snapshot cannot be read ({error}): delete it, the log is folded instead"
        ) from error


def seq_of(data: bytes) -> int:
    """Return the sequence of a snapshot without decoding its state; 0 for another version."""
    try:
        head = _decoder.decode(data)
    except msgspec.DecodeError:
        return 0
    return head.seq if head.version == SNAPSHOT_VERSION else 0


def head(data: bytes) -> bytes:
    """Return a snapshot of the same sequence without its state, for `seq_of`.

    Raises msgspec.DecodeError.
    """
    whole = _decoder.decode(data)
    return _encoder.encode(msgspec.structs.replace(whole, state=msgspec.Raw(_encoder.encode(None))))


def copy(cluster: Cluster) -> Cluster:
    """Return a copy of the state that shares nothing with it."""
    return msgspec.msgpack.decode(_encoder.encode(cluster), type=Cluster)
