"""A node as it would be without some of what is there. Pure: the node itself stays as it is."""

from collections.abc import Collection
from copy import copy

from msgspec.structs import replace

from libs.common.cluster import Cluster
from libs.common.model import attempt_key
from services.scheduler.placement.capacity import mirror
from services.scheduler.placement.place import Place


def without(cluster: Cluster, place: Place, gone: Collection[str]) -> Place:
    """`gone` are attempts (`model.attempt_key`)."""
    later, node = copy(place), place.node
    later.node = replace(
        node,
        members={job_id: attempt for job_id, attempt in node.members.items() if attempt_key(job_id, attempt) not in gone},
        held={key: held for key, held in node.held.items() if key not in gone},
    )
    later.views = [
        replace(
            view,
            holds={key: share for key, share in view.holds.items() if key not in gone},
            parts={key: part for key, part in view.parts.items() if key not in gone},
        )
        for view in place.views
    ]
    mirror(cluster, later)
    return later
