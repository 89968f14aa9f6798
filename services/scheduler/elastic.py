"""Gangs of more than one size (`nodes` to `nodes_max`): an attempt is given as many nodes as there are for it when it is placed.

Pure. What such a gang needs is its fewest nodes: everybody else reckons with these alone, and what it is given beyond them delays nobody.
"""

from libs.common.cluster import Job
from services.scheduler.backfill import Line
from services.scheduler.limits import over_limit, passes_limit
from services.scheduler.placement.choose import NOTHING, Choice
from services.scheduler.placement.gang import widest
from services.scheduler.queue import Shape
from services.scheduler.state import State


def with_more_nodes(state: State, line: Line, job: Job, shape: Shape, choice: Choice) -> Choice:
    """What was chosen for the job, or the same with as many nodes as the line and its tenant's limit let it have."""
    if job.spec.nodes_max <= job.spec.nodes:
        return choice

    def choose(nodes: int) -> Choice:
        wanted = shape.on(nodes)
        found = NOTHING if over_limit(state, wanted) else line.choose(state, job, wanted.wish)
        return NOTHING if passes_limit(state, wanted, found) else found

    return widest(job.spec.nodes, job.spec.most_nodes, choose)
