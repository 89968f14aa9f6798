"""The nodes on which members began with an image, and so probably have it.

Pure, and computed only from the facts of nodes. Placement prefers these nodes among equals. It is a
guess: a node may have removed the image since. Both numbers are bounded; the oldest is forgotten.
Tests: tests/unit/test_image_nodes.py.
"""

from typing import Final

from libs.common.model import NodeId

IMAGES_MAX: Final = 1_000
NODES_MAX: Final = 64

# By the image's name as jobs give it; the nodes that used it last are at the end.
ImageNodes = dict[str, dict[NodeId, None]]


def note(known: ImageNodes, image: str, node_id: NodeId) -> None:
    """Note that a member began with the image on the node."""
    nodes = known.pop(image, {})
    nodes.pop(node_id, None)
    nodes[node_id] = None
    known[image] = nodes
    if len(nodes) > NODES_MAX:
        del nodes[next(iter(nodes))]
    if len(known) > IMAGES_MAX:
        del known[next(iter(known))]
