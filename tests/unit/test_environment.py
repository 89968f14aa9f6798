"""Environment variables of a job, word by word."""

from msgspec.structs import replace

from libs.common import arrays, element_runs
from libs.common.messages import Peer, StartOrder
from libs.common.messages.secret_messages import REPLICA_KEY
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, NodeId, Serve, standby_port
from services.node_agent.jobs.environment import elements_of, environment, passed_on

PEERS = (Peer(NodeId("a"), "10.0.0.1", 2), Peer(NodeId("b"), "10.0.0.2", 2))
BASE = {"PATH": "/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def inventory(vendor: str) -> list[Gpu]:
    return [
        Gpu(
            uuid=GpuId(f"GPU-b-{index}"),
            index=index,
            vendor=vendor,
            model="M",
            memory_bytes=80 << 30,
        )
        for index in range(4)
    ]


def order(
    env: dict[str, str] | None = None, gpus: tuple[int, ...] = (1, 3), share: int = 100
) -> StartOrder:
    spec = JobSpec(
        command=("train",),
        name="bert",
        workdir="/data",
        env=env or {},
        nodes=2,
        gpus=2,
        gpu_share=share,
    )
    holds = tuple(GpuHold(GpuId(f"GPU-b-{index}"), share) for index in gpus)
    return StartOrder(
        job_id=JobId("j-1"),
        attempt=3,
        incarnation=5,
        seq=40,
        rank=1,
        gpus=holds,
        spec=spec,
        tenant="team",
        user="ann",
        peers=PEERS,
        port=29_511,
    )


def test_an_element_knows_its_number_under_all_its_names() -> None:
    one = order()
    element = replace(
        one, job_id=JobId("j-1_5"), spec=replace(one.spec, array=arrays.parse("1-9:2%2"))
    )
    found = environment(element, "b", inventory("nvidia"), BASE)
    assert {
        name: value for name, value in found.items() if "ARRAY" in name or "COMPLETION" in name
    } == {
        "SLURM_ARRAY_JOB_ID": "j-1",
        "SLURM_ARRAY_TASK_ID": "5",
        "SLURM_ARRAY_TASK_COUNT": "5",
        "SLURM_ARRAY_TASK_MIN": "1",
        "SLURM_ARRAY_TASK_MAX": "9",
        "JOB_COMPLETION_INDEX": "5",
        "MUSTER_ARRAY_ID": "j-1",
        "MUSTER_ARRAY_TASK_ID": "5",
    }


def test_the_nodes_of_a_replica_meet_on_another_port_than_requests() -> None:
    one = order()
    replica = replace(one, spec=replace(one.spec, serve=Serve("chat", 1, "/health", 60)))
    found = environment(replica, "b", inventory("nvidia"), BASE)
    assert (found["MASTER_PORT"], found["PORT"]) == (str(standby_port(29_511)), "29511")


def test_a_members_environment_word_by_word() -> None:
    assert environment(order({"EPOCHS": "3"}), "b", inventory("nvidia"), BASE) == {
        "PATH": "/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "EPOCHS": "3",
        "CUDA_VISIBLE_DEVICES": "GPU-b-1,GPU-b-3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "RANK": "1",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29511",
        "PYTHONUNBUFFERED": "1",
        "MUSTER_JOB_ID": "j-1",
        "MUSTER_ATTEMPT": "3",
        "MUSTER_JOB_NAME": "bert",
        "MUSTER_NODE_ID": "b",
        "MUSTER_RANK": "1",
        "MUSTER_WORLD_SIZE": "2",
        "MUSTER_MIN_NODES": "2",
        "MUSTER_MAX_NODES": "2",
        "MUSTER_GPUS": "GPU-b-1,GPU-b-3",
        "MUSTER_GPU_SHARE": "100",
        "MUSTER_TENANT": "team",
        "MUSTER_USER": "ann",
        "MUSTER_PEERS": "a=10.0.0.1,b=10.0.0.2",
        "SLURM_JOB_ID": "j-1",
        "SLURM_JOBID": "j-1",
        "SLURM_JOB_NAME": "bert",
        "SLURM_JOB_NODELIST": "a,b",
        "SLURM_NODELIST": "a,b",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_GPUS": "1,3",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_SUBMIT_DIR": "/data",
        "SLURM_JOB_ACCOUNT": "team",
        "SLURM_JOB_USER": "ann",
    }


def visible(vendor: str, gpus: tuple[int, ...] = (1, 3)) -> dict[str, str]:
    found = environment(order(gpus=gpus), "b", inventory(vendor), {})
    return {
        name: value
        for name, value in found.items()
        if name.startswith(("CUDA", "ROCR", "HIP", "ZE", "GPU", "NVIDIA"))
    }


def test_devices_are_made_visible_the_vendors_way_and_only_one_way() -> None:
    assert visible("simulated") == {
        "CUDA_VISIBLE_DEVICES": "GPU-b-1,GPU-b-3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert visible("amd") == {"ROCR_VISIBLE_DEVICES": "GPU-b-1,GPU-b-3"}
    assert visible("intel") == {"ZE_AFFINITY_MASK": "1,3"}


def test_a_job_without_devices_sees_none() -> None:
    assert visible("nvidia", ()) == {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert environment(order(gpus=()), "b", [], {}).get("CUDA_VISIBLE_DEVICES") is None


def test_the_user_may_set_anything_but_what_the_cluster_vouches_for() -> None:
    given = {
        "PATH": "/opt/bin",
        "RANK": "9",
        "CUDA_VISIBLE_DEVICES": "0",
        "HIP_VISIBLE_DEVICES": "0",
        "MUSTER_JOB_ID": "x",
        "MUSTER_NEW": "y",
    }
    found = environment(order(given), "b", inventory("amd"), BASE)
    assert (found["PATH"], found["RANK"], found["MUSTER_JOB_ID"]) == ("/opt/bin", "9", "j-1")
    assert not {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "MUSTER_NEW"} & set(found)


def test_a_share_is_told_in_hundredths() -> None:
    assert (
        environment(order(gpus=(0,), share=25), "b", inventory("nvidia"), {})["MUSTER_GPU_SHARE"]
        == "25"
    )


def test_the_agents_own_secrets_never_reach_a_job() -> None:
    own = {
        "MUSTER_NKEY_SEED_FILE": "/k",
        "MUSTER_NATS": "nats://x",
        "NATS_CREDS": "c",
        "AWS_SECRET_ACCESS_KEY": "s",
        "PATH": "/bin",
    }
    assert passed_on(own) == {"PATH": "/bin"}


def replica(keyed: bool = True) -> StartOrder:
    one = order({"VLLM_API_KEY": "{key}", "HEADER": "Bearer {key}", "OTHER": "{host}"})
    return replace(one, spec=replace(one.spec, serve=Serve("chat", 1, keyed=keyed)))


def test_a_replica_s_key_stands_where_its_user_wants_it() -> None:
    secrets = {REPLICA_KEY: "k1", "HF_TOKEN": "t", "MUSTER_RANK": "9"}
    found = environment(
        replica(), "b", inventory("nvidia"), BASE, address="10.0.0.2", secrets=secrets
    )
    assert (found["HF_TOKEN"], found["MUSTER_RANK"]) == ("t", "1") and REPLICA_KEY not in found
    names = ("VLLM_API_KEY", "HEADER", "OTHER", "MUSTER_REPLICA_KEY", "MUSTER_HOST")
    assert [found[name] for name in names] == ["k1", "Bearer k1", "{host}", "k1", "10.0.0.2"]


def test_a_replica_without_a_key_keeps_its_environment_as_it_is() -> None:
    plain = replica(keyed=False)
    found = environment(plain, "b", inventory("nvidia"), BASE, address="10.0.0.2")
    assert (found["VLLM_API_KEY"], found["MUSTER_HOST"]) == ("{key}", "10.0.0.2")
    assert "MUSTER_REPLICA_KEY" not in found


def test_another_job_has_neither_a_key_nor_an_address_to_listen_on() -> None:
    found = environment(order(), "b", inventory("nvidia"), BASE, address="10.0.0.2")
    assert not {"MUSTER_REPLICA_KEY", "MUSTER_HOST"} & found.keys()


def test_a_batch_has_the_number_of_its_first_element_and_says_which_names_hold_it() -> None:
    array = replace(arrays.parse("10-98:2"), short=True)
    given = order(env={"SLURM_ARRAY_TASK_ID": "7"})
    spec = replace(
        given.spec, array=array, time_limit_s=element_runs.batch_limit_s(3, 4, given.spec.grace_s)
    )
    batch = replace(given, job_id=JobId("j_20-26"), spec=spec, place=5, count=4, done=1)
    env = environment(batch, "b", inventory("nvidia"), BASE)
    assert env["MUSTER_ARRAY_ID"] == "j" and env["MUSTER_ARRAY_TASK_ID"] == "22"
    assert env["SLURM_ARRAY_TASK_ID"] == "7" and env["JOB_COMPLETION_INDEX"] == "22"
    assert elements_of(batch) == {
        "numbers": [20, 22, 24, 26],
        "first": 1,
        "names": ["MUSTER_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"],
        "limit_s": 3,
        "grace_s": spec.grace_s,
    }
    assert elements_of(given) == elements_of(replace(batch, count=0)) == {}
