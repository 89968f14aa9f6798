"""Nodes that nobody has bought: what `whatif` imagines beside those that there are.

Pure. The gateway checks them, the scheduler makes them (`services/scheduler/with_nodes.py`).
"""

import msgspec


class NewNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many nodes with so many GPUs each, built like a node of the cluster that has this model;
    any model where it is empty.
    """

    nodes: int = 1
    gpus: int = 8
    model: str = ""
