"""Apply facts about secrets to the cluster's state: which names each tenant has.

Pure and total, called by `fold.apply` alone.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.state.cluster import Cluster, Secret


def secret_key(tenant: str, name: str) -> str:
    """Return the key of a secret in the state and in the bucket. A tenant's name has no dot."""
    return f"{tenant}.{name}"


def was_set(cluster: Cluster, fact: f.SecretSet, stamp: Stamp) -> Change:
    cluster.secrets[secret_key(fact.tenant, fact.name)] = Secret(
        tenant=fact.tenant,
        name=fact.name,
        version=fact.version,
        set_ns=stamp.at_ns,
        user=fact.user,
        value_id=fact.value_id,
    )
    return Change()


def removed(cluster: Cluster, fact: f.SecretRemoved, stamp: Stamp) -> Change:
    return (
        Change()
        if cluster.secrets.pop(secret_key(fact.tenant, fact.name), None) is not None
        else IGNORED
    )
