"""Requests about the fabric: a test, and the return of a node that the scheduler drained.

Pure. Tests: tests/unit/test_gateway_fabric_intents.py.
"""

from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import FabricTestRequested, NodeDrainCleared, NodeHoldCleared
from libs.common.life import gpu_life
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node
from services.api_gateway.intents import job_intents
from services.api_gateway.intents.fields import check_known, convert
from services.api_gateway.problems import Problem


class FabricTestBody(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes whose links are measured; none: all idle nodes."""

    nodes: tuple[str, ...] = ()
    user: str = ""


FIELDS: Final = FabricTestBody.__struct_fields__
# Tests run one after the other; more than this do not wait.
WAITING_MAX: Final = 16


def requested_test(cluster: Cluster, body: object, test: str) -> FabricTestRequested:
    """Return the fact for `POST /v1/fabric/tests`.

    Raises Refused for unknown nodes or a single one, and Problem 409 if too many tests wait.
    """
    values = job_intents.body_fields(body, FIELDS)
    user = job_intents.take_user(values)
    nodes = convert(values, FabricTestBody).nodes
    check_known(nodes, cluster.nodes, "node")
    distinct = tuple(NodeId(each) for each in dict.fromkeys(nodes))
    if len(distinct) == 1:
        raise Refused(
            f"nodes: {distinct[0]} alone has no link to measure: name at least two nodes, or none "
            "for all idle ones"
        )
    if len(cluster.fabric.requests) >= WAITING_MAX:
        raise Problem(
            409, f"{WAITING_MAX} fabric tests wait already: wait until GET /v1/fabric shows fewer"
        )
    return FabricTestRequested(test=test, nodes=distinct, user=user)


def drain_clearance(node: Node, body: object) -> list[NodeDrainCleared | NodeHoldCleared]:
    """Return the facts that end the scheduler's drain and hold, if the request sets the node
    online.
    """
    values = body if isinstance(body, dict) else {}
    if values.get("service") != gpu_life.ONLINE:
        return []
    user, facts = str(values.get("user", "")), list[NodeDrainCleared | NodeHoldCleared]()
    if node.is_drained:
        facts.append(NodeDrainCleared(node_id=node.node_id, test=node.drained_by, user=user))
    if node.is_held:
        facts.append(NodeHoldCleared(node_id=node.node_id, until_ns=node.held_until_ns, user=user))
    return facts
