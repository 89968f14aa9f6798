"""The variables that make a job observable."""

from services.node_agent.diagnosis.launch_hook import HOOK, hooked, with_files


def free(port: int) -> bool:
    return True


def test_the_hook_goes_before_the_users_python_path() -> None:
    assert hooked({}, "j.1", False, free) == {"PYTHONPATH": HOOK}
    assert hooked({"PYTHONPATH": "/src"}, "j.1", False, free)["PYTHONPATH"] == f"{HOOK}:/src"


def test_a_job_with_gpus_gets_a_free_port_of_its_own_for_ras() -> None:
    one, other = (hooked({}, key, True, free)["NCCL_RAS_ADDR"] for key in ("j.1", "k.1"))
    assert one != other and one.startswith("127.0.0.1:")
    taken = int(one.rpartition(":")[2])
    moved = hooked({}, "j.1", True, lambda port: port != taken)["NCCL_RAS_ADDR"]
    assert moved == f"127.0.0.1:{taken + 1}"
    assert "NCCL_RAS_ADDR" not in hooked({}, "j.1", True, lambda port: False)


def test_the_users_own_values_win() -> None:
    env = hooked({"NCCL_RAS_ADDR": "127.0.0.1:9"}, "j.1", True, free)
    assert env["NCCL_RAS_ADDR"] == "127.0.0.1:9"
    mine = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}
    assert with_files({**env, **mine}, "/jobs/j.1", False)["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "7"


def test_the_flight_recorder_writes_where_the_job_may_write() -> None:
    env = hooked({}, "j.1", True, free)
    own = with_files(env, "/jobs/j.1", True)
    assert own["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/jobs/j.1/own/nccl_trace_rank_"
    assert own["MUSTER_CHECKPOINT_FILE"] == "/jobs/j.1/own/checkpoint"
    assert with_files({}, "/jobs/j.1", False) == {
        "MUSTER_CHECKPOINT_FILE": "/jobs/j.1/./checkpoint"
    }
