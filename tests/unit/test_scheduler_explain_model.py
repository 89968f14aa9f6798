"""`why MODEL`: the sentence for each state, and the proof of a replica that waits."""

from libs.common import facts as f
from libs.common.model import JobId
from services.scheduler.explain.explain import explain
from services.scheduler.questions.why_model import explain_model
from tests.given import registered, started
from tests.unit.model_world import World, deployed


def test_a_model_that_waits_for_devices_says_for_which() -> None:
    world = World(registered("a", gpus=1), deployed(2))
    answer = explain_model(world.state, "chat")
    assert answer["state"] == "waiting"
    assert answer["answer"].startswith("replica chat-2 waits: it needs 1 node with 1 GPU")
    assert [(each["what"], each["detail"]) for each in answer["blockers"]] == [
        ("GPUs in use: needs 1, at most 0 free", "a")
    ]
    assert answer["remedy"] == "add 1 node of 1 x Simulated H100"


def test_a_redeployment_without_room_for_one_more_says_that_the_others_serve_on() -> None:
    world = World(registered("a", gpus=1), deployed(1))
    world.begin("chat-1")
    world.hear(deployed(1))
    replica, model = explain(world.state, JobId("chat-2")), explain_model(world.state, "chat")
    assert replica["answer"].endswith(
        "serves on with 1 ready replicas, none of which ends before this one is ready"
    )
    assert (model["state"], model["blockers"]) == ("redeploying", replica["blockers"])
    assert replica["answer"] in model["answer"]


def test_a_redeployment_that_goes_on_says_which_generation_takes_over() -> None:
    world = World(registered("a"), deployed(1))
    world.begin("chat-1")
    world.hear(deployed(1))
    answer = explain_model(world.state, "chat")
    assert (answer["state"], answer["answer"]) == (
        "redeploying",
        "1 of 1 replicas are ready; generation 2 takes over one by one",
    )


def test_a_crash_loop_is_named_with_its_last_end_and_the_next_beginning() -> None:
    world = World(registered("a"), deployed(1))
    for number in (1, 2):
        world.hear(started(f"chat-{number}", "a"))
        world.end(f"chat-{number}", 3)
    answer = explain_model(world.state, "chat")
    assert answer["state"] == "crash_looping"
    assert (
        "2 times so far, the last: failed, exit code 3, chat-2; the next one begins at 00:00:02 UTC"
        in answer["answer"]
    )
    assert answer["remedy"] == "read its output: muster logs chat-2"


def test_the_other_states_say_what_they_are() -> None:
    world = World(registered("a"), deployed(1))
    assert (
        "0 of 1 replicas are ready; the others have not answered /health yet"
        in explain_model(world.state, "chat")["answer"]
    )
    world.begin("chat-1")
    assert explain_model(world.state, "chat")["answer"] == "1 of 1 replicas are ready"
    world.hear(f.ModelUndeployed(name="chat"))
    assert (
        explain_model(world.state, "chat")["answer"]
        == "it is not deployed; 1 replicas have not ended yet"
    )
    world.end("chat-1", None, signal=15, reason="stopped")
    assert explain_model(world.state, "chat")["answer"] == "it is not deployed"
    assert explain_model(world.state, "none")["state"] == "unknown"


def test_a_crash_loop_of_a_command_that_is_absent_asks_for_another_command() -> None:
    world = World(registered("a"), deployed(1))
    for number in (1, 2):
        world.end(f"chat-{number}", 127, reason="exec_failed", detail="the command x was not found")
    answer = explain_model(world.state, "chat")
    assert "the last: the command x was not found on a (exit code 127), chat-2" in answer["answer"]
    assert answer["remedy"] == "correct the command: muster redeploy chat -- COMMAND"
