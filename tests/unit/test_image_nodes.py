"""Placement prefers nodes that have the job's image, among equals only."""

from libs.common import facts as f
from libs.common.model import JobId, NodeId
from libs.common.state import image_nodes
from libs.common.state.image_nodes import IMAGES_MAX, NODES_MAX, ImageNodes
from services.scheduler.decide.decide import decide
from services.scheduler.state.state import State
from tests.given import ended, given, member, placed, registered, waiting

NODES = [registered(f"n{i}", isolation={"images": "", "containers": ""}) for i in range(4)]


def chosen(state: State) -> list[str]:
    """The nodes of the placement that the scheduler decides next."""
    (fact,) = [fact for fact in decide(state, 0) if isinstance(fact, f.JobPlaced)]
    return [each.node_id for each in fact.members]


def ran(image: str, node: str, job: str = "before") -> list[object]:
    """A job with this image that has ended on a node."""
    closed = f.JobClosed(job_id=JobId(job), attempt=1, outcome="completed", exit_code=0)
    return [
        *waiting(job, image=image, gpus=1),
        placed(job, member(node, 0)),
        *ended(job, node),
        closed,
    ]


def test_a_node_that_has_the_image_comes_before_its_equals() -> None:
    history = [*NODES, *ran("team/x:1", "n2")]
    assert chosen(given(*history, waiting("j", image="team/x:1", gpus=4))) == ["n2"]  # type: ignore[arg-type]
    assert chosen(given(*history, waiting("j", image="team/y:1", gpus=4))) == ["n0"]  # type: ignore[arg-type]
    assert chosen(given(*history, waiting("j", gpus=4))) == ["n0"]  # type: ignore[arg-type]


def test_an_image_outweighs_no_better_fit() -> None:
    """One device is free on n1, so a small job goes there and keeps whole nodes free."""
    busy = [*waiting("k", gpus=3), placed("k", member("n1", 0, 1, 2))]
    history = [*NODES, *ran("team/x:1", "n2"), *busy]
    assert chosen(given(*history, waiting("j", image="team/x:1", gpus=1))) == ["n1"]  # type: ignore[arg-type]


def test_gang_takes_nodes_with_the_image_first() -> None:
    history = [*NODES, *ran("team/x:1", "n3"), *ran("team/x:1", "n1", "other")]
    wish = waiting("j", image="team/x:1", gpus=4, nodes=2)
    assert chosen(given(*history, wish)) == ["n1", "n3"]  # type: ignore[arg-type]


def test_a_node_that_is_not_known_is_left_out() -> None:
    state = given(*NODES)
    assert state.capacity.bits_of([NodeId("n1"), NodeId("gone"), NodeId("n0")]) == 0b11


def test_the_oldest_nodes_and_images_are_forgotten() -> None:
    known: ImageNodes = {}
    for number in range(NODES_MAX + 1):
        image_nodes.note(known, "a", NodeId(f"n{number}"))
    image_nodes.note(known, "a", NodeId("n1"))
    assert len(known["a"]) == NODES_MAX and list(known["a"])[-1] == "n1"
    assert "n0" not in known["a"]
    for number in range(IMAGES_MAX):
        image_nodes.note(known, f"x{number}", NodeId("n"))
    assert len(known) == IMAGES_MAX and "a" not in known
