"""`muster.ClusterClient` against a real cluster: programs run with their input and their GPUs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import muster
import pytest
import pytest_asyncio

from libs.embedded.servers import free_ports
from tests.integration.channel_world import World, channel_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
T = TypeVar("T")
LONGEST_S = 60.0
PREDICT = (
    "import json, os, sys\n"
    "rows = json.load(open(sys.argv[1]))\n"
    "gpus = os.environ['CUDA_VISIBLE_DEVICES'].split(',')\n"
    "open('kept.txt', 'w').write('kept')\n"
    "print(json.dumps({'sum': sum(rows), 'gpus': len(gpus)}))\n"
)


class Cluster:
    """A cluster, and where it answers gRPC."""

    def __init__(self, world: World, target: str, key: str) -> None:
        self.world = world
        self.target = target
        self.key = key

    def client(self, **more: Any) -> muster.ClusterClient:
        return muster.ClusterClient(self.target, self.key, **more)

    async def run(self, function: Callable[[muster.ClusterClient], T]) -> T:
        """Call a function with a client, on a thread."""

        def called() -> T:
            with self.client() as client:
                return function(client)

        return await asyncio.to_thread(called)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    (port,) = free_ports(1)
    settings = {"MUSTER_GATEWAY_GRPC_HOST": "127.0.0.1", "MUSTER_GATEWAY_GRPC_PORT": str(port)}
    async with channel_world(tmp_path_factory.mktemp("rpc"), **settings) as world:
        key = world.chaos.session.headers["authorization"].removeprefix("Bearer ")
        yield Cluster(world, f"127.0.0.1:{port}", key)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "predict.py"
    path.write_text(PREDICT)
    return path


async def test_a_program_runs_on_its_input_with_its_gpus(cluster: Cluster, program: Path) -> None:
    def submit(client: muster.ClusterClient) -> tuple[Any, bytes, bytes]:
        job = client.submit_job(
            model_path=program,
            input_data=[1, 2, 3],
            gpu_requirements={"count": 2, "memory_gb": 10},
            name="predict",
        ).wait(LONGEST_S, check=True)
        return job, job.output(), job.file("kept.txt")

    job, output, kept = await cluster.run(submit)
    assert json.loads(output) == {"sum": 6, "gpus": 2} and kept == b"kept"
    assert (job.name, job.gpus, job.state, job.exit_code) == ("predict", 2, "completed", 0)


async def test_a_part_of_a_gpu_is_enough(cluster: Cluster, program: Path) -> None:
    job = await cluster.run(lambda c: c.submit_job(program, [1], 0.5).wait(LONGEST_S, check=True))
    assert (job.gpus, job.gpu_share) == (1, 50)


async def test_output_is_followed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "main.sh").write_text("echo out; echo err >&2; cat $1")

    def follow(client: muster.ClusterClient) -> list[tuple[str, bytes]]:
        return list(client.submit_job(tmp_path, b"in").follow())

    found = await cluster.run(follow)
    text = {name: b"".join(data for each, data in found if each == name) for name, _ in found}
    assert text == {"stdout": b"out\nin", "stderr": b"err\n"}


async def test_a_job_that_fails_and_one_that_waits_are_told_apart(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "fail.sh"
    path.write_text("exit 3")
    slow = tmp_path / "slow.sh"
    slow.write_text("sleep 300")

    def submit(client: muster.ClusterClient) -> None:
        with pytest.raises(muster.errors.JobFailed) as failed:
            client.submit_job(path).wait(LONGEST_S, check=True)
        assert failed.value.code == 3
        job = client.submit_job(slow)
        with pytest.raises(muster.errors.TimedOut):
            job.wait(0.5)
        assert client.job(job.id[:8]).id == job.id
        assert job.cancel().wait(LONGEST_S).state == "cancelled"

    await cluster.run(submit)


async def test_a_repeated_submission_gives_the_first_job(cluster: Cluster, program: Path) -> None:
    def submit(client: muster.ClusterClient) -> tuple[str, str]:
        first = client.submit_job(program, [1], idempotency_key="once")
        return first.id, client.submit_job(program, [1], idempotency_key="once").id

    first, second = await cluster.run(submit)
    assert first == second


async def test_errors_are_typed_and_name_the_field(cluster: Cluster, program: Path) -> None:
    def submit(client: muster.ClusterClient) -> None:
        for fields, field in (({"gpus_": 1}, "gpus_"), ({"time_limit": "soon"}, "time_limit")):
            with pytest.raises(muster.errors.InvalidRequest) as wrong:
                client.submit_job(program, **fields)
            assert wrong.value.field == field
        with pytest.raises(muster.errors.InvalidRequest, match="out of bounds"):
            client.submit_job(program, gpu_requirements=99)
        with pytest.raises(muster.errors.NotFound):
            client.job("nothing")
        with pytest.raises(muster.errors.InvalidRequest, match="is a stream"):
            client.call("Events/Watch")
        with pytest.raises(muster.errors.InvalidRequest, match="does not answer with a stream"):
            next(client.stream("Jobs/GetJob"))

    await cluster.run(submit)


async def test_any_method_can_be_called(cluster: Cluster) -> None:
    def ask(client: muster.ClusterClient) -> tuple[Any, Any]:
        return client.call("Nodes/ListNodes", {"limit": 1}), next(client.stream("Events/Watch"))

    nodes, change = await cluster.run(ask)
    assert nodes.nodes[0].gpus_total == 8 and change.event


async def test_a_key_is_needed_and_a_profile_s_goes_to_its_host_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = cluster.world.chaos.folder / "profile.json"
    monkeypatch.delenv("MUSTER_API_KEY", raising=False)

    def role(**more: Any) -> str:
        with muster.ClusterClient(cluster.target, **more) as client:
            return str(client.call("Nodes/WhoAmI").role)

    assert await asyncio.to_thread(role, profile=profile) == "admin"
    kept = json.loads(profile.read_text())
    other = profile.with_name("other.json")
    other.write_text(json.dumps({**kept, "gateway": "http://gpus.example.org:8080"}))
    for more in ({"key": "wrong"}, {"profile": other}):
        with pytest.raises(muster.errors.Unauthorized):
            await asyncio.to_thread(role, **more)


async def test_no_gateway_is_named_after_the_retries() -> None:
    (port,) = free_ports(1)

    def ask() -> None:
        with muster.ClusterClient(f"127.0.0.1:{port}", "k", retry_s=0.3) as client:
            client.call("Nodes/WhoAmI")

    with pytest.raises(muster.errors.Unavailable, match=f"127.0.0.1:{port}") as away:
        await asyncio.to_thread(ask)
    assert not away.value.sent
    with pytest.raises(muster.errors.InvalidRequest, match="host:9090"):
        muster.ClusterClient("http://host:9090", "k")
