"""Every example, run as its first lines say, against a real cluster of `muster up`.

`make examples` runs them (PYTHON_WITH_TORCH names an interpreter that has PyTorch).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from libs.embedded import servers
from tests.examples.world import EXAMPLES, ExampleWorld, example_world

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]

SERVER = f"{sys.executable} {EXAMPLES}/model_server.py --port {{port}}"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleWorld]:
    with example_world(tmp_path_factory.mktemp("examples")) as made:
        yield made


@pytest.fixture(scope="module")
def models(world: ExampleWorld) -> ExampleWorld:
    for name in ("chat", "embedder"):
        world.said(f"muster deploy {name} --gpus 0 --cpus 1 --wait -- {SERVER}")
    return world


def with_torch() -> str:
    """Return an interpreter with PyTorch; skip the test without one."""
    for python in (os.environ.get("PYTHON_WITH_TORCH", ""), sys.executable):
        tried = [python, "-c", "import torch.distributed.fsdp"]
        if python and subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip("PyTorch is not installed (pip install torch; or set PYTHON_WITH_TORCH)")


def test_ddp_keeps_one_model_on_all_ranks(world: ExampleWorld) -> None:
    line = f"muster run --nodes 2 --gpus 1 --upload examples -- {with_torch()} ddp.py"
    assert "rank 0 of 2: loss 0.0" in (said := world.said(line)) and "one model: True" in said


def test_fsdp_holds_half_of_the_model_on_each_of_two_ranks(world: ExampleWorld) -> None:
    line = f"muster run --nodes 2 --gpus 1 --upload examples -- {with_torch()} fsdp.py"
    held, whole = re.search(r"holds (\d+) of (\d+)", world.said(line)).groups()  # type: ignore[union-attr]
    assert int(held) * 2 == int(whole)


def test_a_program_without_pytorch_says_what_it_needs(world: ExampleWorld) -> None:
    done = world.run(f"muster run --upload examples -- {sys.executable} -S ddp.py")
    assert done.returncode == 1 and "ddp.py needs PyTorch" in done.stdout + done.stderr


def test_a_sweep_finds_the_best_rate(world: ExampleWorld) -> None:
    assert world.said("examples/array_sweep.sh") == "rate 0.50 loss 0.000e+00\n"


def test_a_short_array_says_which_element_failed(world: ExampleWorld) -> None:
    said = world.said("examples/short_array.sh")
    assert "999 completed, 1 failed" in said and said.splitlines()[-1].split()[:2] == [
        "500",
        "failed",
    ]


def test_an_elastic_gang_goes_on_from_its_checkpoint(world: ExampleWorld) -> None:
    said = world.said("examples/elastic_gang.sh")
    assert "attempt 2 goes on from step" in said and "from step 0 " not in said
    assert "done after 60 steps" in said


def test_a_notebook_runs_on_an_allocation_and_ends_with_it(world: ExampleWorld) -> None:
    port, inside = servers.free_ports(2)
    command = f"{sys.executable} -m http.server {inside} --bind 127.0.0.1"
    more = {"PORT": str(port), "INSIDE": str(inside), "NOTEBOOK": command}
    environment = world.environment | more
    process = subprocess.Popen(
        [EXAMPLES / "notebook.sh"], env=environment, cwd=world.folder, start_new_session=True
    )
    try:
        assert "Directory listing" in page(f"http://127.0.0.1:{port}/")
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while json.loads(world.said("muster ps --kind allocation -o json")):
        assert time.monotonic() < until, "the allocation is not released"
        time.sleep(0.2)


def page(url: str) -> str:
    """Return a page, as soon as it is there."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except (URLError, OSError):
            assert time.monotonic() < until, f"nothing answers at {url}"
            time.sleep(0.2)


def test_memory_of_a_pool_is_defragmented(world: ExampleWorld) -> None:
    line = f"muster run --pool 256MiB --upload examples -- {sys.executable} memory_pool.py"
    said = world.said(line)
    before, after = re.findall(r"largest free block (\d+) MiB", said)
    assert int(after) > int(before)


def test_all_ranks_get_the_weights_over_links(world: ExampleWorld) -> None:
    world.said("head -c 32 /dev/urandom | base64 | muster secret set link-key")
    job = world.said(
        "muster submit --nodes 3 --secret link-key --upload examples -- "
        f"{sys.executable} transport.py"
    ).strip()
    world.said(f"muster wait {job}")
    has = [world.said(f"muster logs --rank {rank} {job}").split()[-1] for rank in range(3)]
    assert len(set(has)) == 1


def test_a_program_with_its_input_runs_over_grpc(world: ExampleWorld) -> None:
    said = world.said(f"{sys.executable} examples/grpc_client.py {world.grpc}")
    assert "adding 100 numbers" in said and '{"sum": 4950}' in said


def test_a_link_leads_to_a_job_on_the_dashboard(world: ExampleWorld) -> None:
    job = world.said("muster submit --name linked --gpus 1 -- true").strip()
    said = world.said("examples/dashboard_link.sh linked")
    assert f"/jobs/{job}\n" in said and "/#link=" in said


@pytest.mark.parametrize("name", ["vllm.sh", "sglang.sh"])
def test_a_gateway_accepts_the_deployment(world: ExampleWorld, name: str) -> None:
    """The server itself is not installed here: only the request is checked."""
    said = world.said(f"examples/{name}")
    model = {"vllm.sh": "Qwen2.5-7B-Instruct", "sglang.sh": "DeepSeek-V3"}[name]
    assert model in said
    world.said(f"muster undeploy {model}")


def test_an_answer_is_made_from_the_nearest_documents(models: ExampleWorld, tmp_path: Path) -> None:
    (tmp_path / "leases.md").write_text("A lease is the time until which an agent may run jobs.")
    for number in range(5):
        (tmp_path / f"other-{number}.md").write_text("tea cake milk sugar bread " * 9)
    said = models.said(
        f"{sys.executable} examples/rag.py --embed embedder --chat chat --documents {tmp_path} "
        "'what is a lease'"
    )
    assert "what is a lease" in said and "from: leases.md" in said


def test_a_batch_continues_where_it_was(models: ExampleWorld, tmp_path: Path) -> None:
    rows = [{"id": f"p{number}", "prompt": f"number {number}"} for number in range(40)]
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows[:25]))
    line = f"{sys.executable} examples/batch_inference.py --model chat {prompts} {answers}"
    assert models.said(line) == "25 answered, 0 were there already\n"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert models.said(line) == "15 answered, 25 were there already\n"
    written = [json.loads(each)["id"] for each in answers.read_text().splitlines()]
    assert sorted(written) == sorted(row["id"] for row in rows)


def test_weights_of_tenants_decide_their_shares(world: ExampleWorld) -> None:
    said = world.said("examples/fair_tenants.sh", JOBS="24")
    held = [
        (int(row.split()[1].partition("/")[0]), int(other.split()[1].partition("/")[0]))
        for row, other in zip(
            re.findall(r"^physics .*$", said, re.MULTILINE),
            re.findall(r"^biology .*$", said, re.MULTILINE),
            strict=True,
        )
    ]
    assert any(physics >= 2 * biology > 0 for physics, biology in held), said
    for job in re.findall(r"^j[a-z2-7]{10}$", said, re.MULTILINE):
        world.said(f"muster kill {job} && muster wait {job} || true")


def test_a_team_uses_another_teams_model_within_limits(world: ExampleWorld) -> None:
    said = world.said("examples/multi_tenant_deployment.sh")
    assert "Is it warm enough to swim?" in said
    found = re.search(r"^vision +product +bob .*assistant +requests .*$", said, re.MULTILINE)
    assert found is not None, said


def test_a_cluster_is_set_up_used_and_stopped(world: ExampleWorld, tmp_path: Path) -> None:
    (port,) = servers.free_ports(1)
    said = world.said(f"examples/basic_cluster_setup.sh {tmp_path}/own", PORT=str(port))
    assert "rank 0 of 2" in said and "could never hold it" in said
    assert "the chain is whole" in said


def test_a_cluster_is_measured(world: ExampleWorld) -> None:
    said = world.said(f"{sys.executable} examples/benchmark_suite.py --jobs 5")
    assert len(re.findall(r"p50 +[\d.]+ ms", said)) == 4 and "jobs/s" in said
