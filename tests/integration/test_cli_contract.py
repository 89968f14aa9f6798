"""Every verb of `muster` against a real gateway with simulated devices, the command as a child.

The verbs are found in the command itself, so a new verb without a case fails. No output may hold
`None` or a traceback: that is printed when the gateway gives another answer than is expected.
"""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import click
import pytest
import pytest_asyncio

from libs.cli.main import muster
from tests.chaos.cluster import Chaos, running
from tests.integration.cli_cases import Case, case
from tests.integration.cli_use_cases import USE_CASES

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_S: Final = 60.0
LOOK_S: Final = 4.0  # a verb that goes on until it is interrupted is interrupted after this
# A job that runs, one that waits, one that ended well, and the tests' allocation and model.
RUNS, WAITS, ENDED, HELD, MODEL = "runs", "waits", "ended", "held", "served"
SLEEP: Final = ("--", "sleep", "600")
UPLOADS: Final = ("submit", "-g", "0", "--cpus", "1", "--upload", "sent", "--", "true")
# No job comes to the node of this device.
DEVICE: Final = "GPU-node-2-3"
WRONG: Final = re.compile(r"\bNone\b|Traceback|<function|object at 0x")


def job(name: str) -> tuple[str, ...]:
    return ("submit", "-J", name, "-g", "1", *SLEEP)


def model(name: str, *flags: str) -> tuple[str, ...]:
    return ("deploy", name, "-g", "0", "--cpus", "1", *flags, *SLEEP)


SET_A2: Final = ("secret", "set", "A2", "--from-file", "value")
CASES: Final[dict[str, tuple[Case, ...]]] = {
    "run": (case("run -g 1 -- echo here", "here"), case("run -g 1 -- false", "", 1)),
    "submit": (
        case("submit -g 0 --cpus 1 -- true"),
        case("submit --dry-run -g 1 -- true", "valid"),
        case("submit -o json -g 0 --cpus 1 -- true", "{"),
    ),
    "ps": (
        case("ps", RUNS),
        case("ps -a -o wide", ENDED),
        case("ps -o json", RUNS),
        case("ps --kind allocation", HELD),
    ),
    "describe": (
        case(f"describe {RUNS}", "started"),
        case(f"describe {ENDED}", "completed"),
        case(f"describe {WAITS}", "queued"),
    ),
    "jobs list": (case("jobs list", RUNS),),
    "jobs describe": (case(f"jobs describe {RUNS}", "started"),),
    "jobs cancel": (case("jobs cancel c1", before=(job("c1"),)),),
    "jobs kill": (case("jobs kill k1", before=(job("k1"),)),),
    "logs": (case(f"logs {ENDED}", "well done"),),
    "cp": (case(f"cp {RUNS}:/no/such/file there", "no", 1),),
    "trace": (
        case(f"trace {RUNS}", "no process of the job asks to be traced", 1),
        case(f"trace {RUNS} --for 90s", "duration_s: 90 is out of bounds", 1),
        case(f"trace {RUNS} --rank one", "is not a rank", 2),
        case(f"trace {RUNS} --list", "STATE"),
        case(f"trace {WAITS}", "only a running job can be traced", 1),
    ),
    "exec": (case(f"exec {RUNS} -- echo beside", "beside"),),
    "port-forward": (case(f"port-forward {RUNS} 9:39181", "127.0.0.1:39181", 130, ends=False),),
    "cancel": (case("cancel c2", before=(job("c2"),)), case("cancel nosuchjob", "nosuchjob", 1)),
    "kill": (case("kill k2", before=(job("k2"),)),),
    "hold": (case("hold h1", before=(("submit", "-J", "h1", "-N", "9", "--", "true"),)),),
    "alloc": (case("alloc -g 1 --expires 1h -J a1", "CUDA_VISIBLE_DEVICES"), case("release a1")),
    "extend": (case(f"extend {HELD} --by 1h"),),
    "release": (case("release a2", before=(("alloc", "-g", "1", "--expires", "1h", "-J", "a2"),)),),
    "requeue": (case("requeue q1", before=(job("q1"),)), case("kill q1")),
    "update": (case(f"update {WAITS} -p 60"),),
    "wait": (case(f"wait {ENDED}"), case(f"wait {RUNS} --timeout 1s", RUNS, 124)),
    "why": (
        case(f"why {RUNS}", "run"),
        case(f"why {WAITS}", "Remedy"),
        case(f"why {ENDED}", "ended"),
        case(f"why {WAITS} -o json", "{"),
    ),
    "diagnose": (
        case(f"diagnose {RUNS}", "The job has one rank"),
        case(f"diagnose {RUNS} --last", "no diagnosis of this job is recorded"),
        case(f"diagnose {RUNS} --evidence", "processes"),
        case(f"diagnose {WAITS}", "cannot be diagnosed", 1),
        case(f"diagnose {RUNS} --last --evidence", "exclude each other", 2),
    ),
    "whatif": (
        case("whatif -g 1 -- true", "would start"),
        case("whatif -N 9 --add-nodes 9 --add-gpus 8 -- true", "would start now"),
    ),
    "deploy": (case("deploy d1 -g 0 --cpus 1 -- sleep 600", "d1"), case("undeploy d1")),
    "models": (
        case("models", MODEL),
        case(f"models {MODEL}", "starting"),
        case(f"models {MODEL}", "queue    0 requests wait with 0 input tokens"),
        case("models -o json", MODEL),
    ),
    "model pull": (
        case("model pull a/b --to-node no-such --detach"),
        case("model pull a/b --to-node no-such --detach --include x --hub http://hub"),
        case("model pull ../b --all", "is not the name of a repository", 2),
        case("model pull a/b --from-node no-such --to-node node-1", "has not registered", 1),
    ),
    "model pulled": (
        case("model pulled", "NODE"),
        case("model pulled no-such", "has not registered", 1),
    ),
    "model unpull": (
        case("model unpull a/b --all"),
        case("model unpull a/b --node no-such", "has not registered", 1),
    ),
    "model keep": (
        case(f"model keep {MODEL} --tier artefact"),
        case("model keep no-such --tier artefact", "no-such", 1),
    ),
    "model kept": (
        case(
            f"model kept {MODEL}",
            "artefact",
            before=(("model", "keep", MODEL, "--tier", "artefact"),),
        ),
    ),
    "model drop": (
        case(
            f"model drop {MODEL} --tier artefact",
            before=(("model", "keep", MODEL, "--tier", "artefact"),),
        ),
        case(f"model drop {MODEL} --tier host", "keeps no tier host", 2),
    ),
    "model alias": (
        case(f"model alias {MODEL} Org/A"),
        case(f"models {MODEL}", "names    Org/A"),
        case(f"model alias {MODEL} a//b", "use letters, digits", 1),
    ),
    "model unalias": (
        case(f"model unalias {MODEL} b", before=(("model", "alias", MODEL, "b"),)),
        case(f"model unalias {MODEL} no-such", "does not have the alias", 1),
    ),
    "model share": (
        case(f"model share {MODEL} --with all"),
        case(f"models {MODEL}", "shared   with all tenants"),
        case(f"model share {MODEL} --with no-such", "does not exist", 1),
    ),
    "model limit": (
        case(f"model limit {MODEL} --tenant all --requests-per-minute 9"),
        case(f"models {MODEL}", "limits   each other guest 9 requests a minute"),
        case(f"model limit {MODEL} --tenant no-such", "does not exist", 1),
    ),
    "model unshare": (
        case(f"model unshare {MODEL}", before=(("model", "share", MODEL, "--with", "all"),)),
        case(f"model unshare {MODEL}", "shared with no tenant", 2),
    ),
    "adapter add": (
        case(f"adapter add {MODEL} sql /lora/sql"),
        case(f"models {MODEL}", "adapters sql"),
        case(f"adapter add {MODEL} sql /etc/sql", "outside the folder", 1),
    ),
    "adapter list": (
        case("adapter list", "/lora/x", before=(("adapter", "add", MODEL, "x", "/lora/x"),)),
        case(f"adapter list {MODEL} -o json", '"loaded"'),
    ),
    "adapter remove": (
        case(f"adapter remove {MODEL} y", before=(("adapter", "add", MODEL, "y", "/lora/y"),)),
        case(f"adapter remove {MODEL} no-such", "has no adapter", 1),
    ),
    **USE_CASES,
    "scale": (case(f"scale {MODEL} 2"),),
    "redeploy": (case("redeploy d2 -- sleep 601", before=(model("d2"),)), case("undeploy d2")),
    "undeploy": (case("undeploy d3", before=(model("d3"),)),),
    "nodes": (
        case("nodes", "node-1"),
        case("nodes node-1", "node-1  healthy"),
        case("nodes node-1 -o wide", "GPU-node-1-0"),
        case("nodes node-1 -o json", '"gpus"'),
        case("nodes node-9", "node-9", 1),
    ),
    "node add": (case("node add n9", "--listen", 1),),
    "node dead": (case("node dead node-1", "healthy", 1),),
    "node remove": (case("node remove n9", "n9", 1),),
    "prune": (case("prune --older-than 1d --dry-run", "node-1", before=(UPLOADS,)),),
    "gpus": (case("gpus", "node-2"), case("gpus --node node-1 -o wide", "GPU-node-1-0")),
    "status": (case("status", "healthy"),),
    "gpu clocks": (case(f"gpu clocks 1200-1500 --gpu-id {DEVICE}", "done"),),
    "gpu compute-mode": (case(f"gpu compute-mode default --gpu-id {DEVICE}", "done"),),
    "gpu compute-partition": (case(f"gpu compute-partition SPX --gpu-id {DEVICE}", "lacking"),),
    "gpu ecc": (case(f"gpu ecc on --gpu-id {DEVICE}", DEVICE),),
    "gpu memory-partition": (case(f"gpu memory-partition NPS1 --gpu-id {DEVICE}", "lacking"),),
    "gpu mig": (
        case(f"gpu mig on --gpu-id {DEVICE}", "done"),
        case(f"gpu mig off --gpu-id {DEVICE}", "done"),
    ),
    "gpu persistence": (case(f"gpu persistence on --gpu-id {DEVICE}", "done"),),
    "gpu power": (
        case(f"gpu power 300 --gpu-id {DEVICE}", "done"),
        case(f"gpu power --default --gpu-id {DEVICE}"),
    ),
    "gpu reset": (case(f"gpu reset --gpu-id {DEVICE}", "done"),),
    "health": (case("health", "healthy"), case(f"health --gpu-id {DEVICE}", "healthy")),
    "drain": (
        case(f"drain --gpu-id {DEVICE}", "no job"),
        case(f"online --gpu-id {DEVICE}", DEVICE),
    ),
    "offline": (
        case(f"offline --gpu-id {DEVICE}", "no job"),
        case(f"online --gpu-id {DEVICE}", DEVICE),
    ),
    "online": (case("online node-2", "node-2"), case("online node-9", "node-9", 1)),
    "topo": (case("topo node-1", "GPU0"),),
    "memory": (case("memory", "NODE"), case("memory no-such", "no-such", 1)),
    "backup": (case("backup there --key-file absent", "no key file", 2),),
    "restore": (case("restore there --key-file absent --state new", "no key file", 2),),
    "certificates show": (case("certificates show", "no certificates", 2),),
    "certificates renew": (case("certificates renew", "no certificates", 2),),
    "cluster verify": (case("cluster verify", "no hash of the state is recorded yet", 1),),
    "leases": (case("leases", "default: heartbeat"),),
    "lock": (case("lock l1 -- echo held", "held"),),
    "locks": (case("locks", "TOKEN"),),
    "bus add": (
        case("bus", "nats-server"),
        case("bus add --timeout never", "--timeout", 2),
    ),
    "bus roll": (case("bus roll --timeout never", "--timeout", 2),),
    "bus replace": (case("bus replace nats-server", "the only server", 1),),
    "fabric test": (
        case("fabric test node-1 node-2", "test-"),
        case("fabric test node-9", "node-9", 1),
    ),
    "queue list": (case("queue list", "default"),),
    "queue set": (case("queue set night --policy fifo", "night"),),
    "reserve": (
        case("reserve later --node node-1 --tenant default --for 10m", "later"),
        case("unreserve later"),
    ),
    "maintenance": (case("maintenance node-1 --for 10m --name w1", "w1"), case("unreserve w1")),
    "unreserve": (case("unreserve none", "none", 1),),
    "reservations": (case("reservations", "quiet"),),
    "top": (case("top", "node-1"),),
    "watch": (case("watch --interval 1s", "node-1", ends=False),),
    "log": (
        case("log -n 5", "KIND"),
        case(f"log -j {RUNS}", "job.placed"),
        case("log --access", ""),
        case("log -n 2 -o json", "{"),
    ),
    "state": (case("state", "cluster_id"), case("state --at 5", "jobs")),
    "audit export": (case("audit export --until 3 --output facts.out"),),
    "audit head": (case("audit head", "hash"),),
    "audit migrate": (case("audit migrate --to nowhere", "nowhere", 2),),
    "audit verify": (case("audit verify", "the chain is whole"),),
    "login": (case("login {url} --replace", stdin="{key}\n"),),
    "dashboard": (case("dashboard", "/#link=mss_"),),
    "whoami": (case("whoami", "admin"),),
    "tenant list": (case("tenant list", "default"),),
    "tenant set": (case("tenant set t1 --gpus 2", "t1"),),
    "tenant show": (case("tenant show default", "default"),),
    "tenant rm": (case("tenant rm t2", before=(("tenant", "set", "t2"),)),),
    "key create": (case("key create --user bob", "msk_"),),
    "key limit": (case("key limit nosuchkey --tokens-per-minute 9", "nosuchkey", 1),),
    "key list": (case("key list", "carl", before=(("key", "create", "--user", "carl"),)),),
    "key reset": (case("key reset --state nowhere", "nowhere", 2),),
    "key revoke": (case("key revoke nosuchkey", "nosuchkey", 1),),
    "key rotate": (case("key rotate nosuchkey", "nosuchkey", 1),),
    "secret set": (case("secret set A1 --from-file value", "version 1"),),
    "secret list": (case("secret list", "SECRET"),),
    "secret rm": (case("secret rm A2", "removed", before=(SET_A2,)),),
    "notify add": (case("notify add n1 --mail a@example.org", "n1"),),
    "notify list": (case("notify list", "ADDRESS"),),
    "notify test": (case("notify test none", "none", 1),),
    "notify remove": (case("notify remove none", "none", 1),),
    "up": (case("up --state {state}", "is in use by a running cluster", 2),),
    "down": (case("down --state nowhere"),),
    "clean": (case("clean --state nowhere -y"),),
    "doctor": (case("doctor --state {state}", "nats-server"),),
    "simulate": (case("simulate --trace missing.csv --nodes 2x8", "missing.csv", 1),),
    "join": (case("join http://127.0.0.1:1 --token x --foreground", "token", 2),),
    "config check": (case("config check", "valid"),),
    "config show": (case("config show", "heartbeat_ms"),),
    "support-bundle": (
        case("support-bundle --output bundle.tar.gz --state {state}", "bundle.tar.gz"),
    ),
    "slurm-shims": (case("slurm-shims shims", "shims/sbatch"),),
    "completion": (case("completion bash", "muster"), case("completion --names jobs", RUNS)),
    "version": (case("version", "gateway"), case("version -o json", "client")),
}


def leaves(command: click.Command, path: str, context: click.Context) -> Iterator[str]:
    """Every verb, and of a verb with verbs of its own each of those."""
    if not isinstance(command, click.Group):
        yield path
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None, name
        yield from leaves(found, f"{path} {name}".strip(), context)


class Command:
    """`muster` on a machine with an admin's key."""

    def __init__(self, folder: Path, words: dict[str, str]) -> None:
        self.folder, self.words = folder, words

    async def run(self, *argv: str, stdin: str = "", ends: bool = True) -> tuple[int, str]:
        """The exit code, and what was printed on both streams."""
        line = [
            sys.executable,
            "-c",
            "from libs.cli.main import main; main()",
            *(word.format_map(self.words) for word in argv),
        ]
        told = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path.cwd()),
            "USER": "ada",
            "MUSTER_PROFILE": str(self.folder / self.profile_of(argv[0])),
        }
        child = await asyncio.create_subprocess_exec(
            *line,
            cwd=self.folder,
            env=told,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if not ends:
            asyncio.get_running_loop().call_later(LOOK_S, child.send_signal, signal.SIGINT)
        out, _ = await asyncio.wait_for(
            child.communicate(stdin.format_map(self.words).encode()), PATIENCE_S
        )
        return child.returncode or 0, out.decode()

    def profile_of(self, verb: str) -> str:
        """`login` writes one of its own: the other verbs go on with the key of the
        cluster's host.
        """
        return "other.json" if verb == "login" else "profile.json"

    async def needs(self, *argv: str) -> None:
        code, out = await self.run(*argv)
        assert code == 0, f"muster {' '.join(argv)} ended with {code}: {out}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def command(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Command]:
    folder = tmp_path_factory.mktemp("contract")
    async with running(folder, nodes=2, gpus=6) as chaos:
        yield await prepared(folder, chaos)


async def prepared(folder: Path, chaos: Chaos) -> Command:
    """Each kind of thing that a verb shows is there once."""
    (folder / "value").write_text("secret value")
    (folder / "sent").mkdir()
    (folder / "sent" / "train.py").write_text("print(1)")
    key = json.loads((folder / "profile.json").read_text())["key"]
    made = Command(folder, {"url": chaos.urls[0], "state": str(chaos.state), "key": key})
    await made.needs("maintenance", "node-2", "--for", "9h", "--name", "quiet")
    await made.needs("run", "-J", ENDED, "-g", "1", "--", "echo", "well done")
    await made.needs("submit", "-J", RUNS, "-g", "1", *SLEEP)
    await made.needs("submit", "-J", WAITS, "-N", "9", "-g", "1", *SLEEP)
    await made.needs("alloc", "-J", HELD, "-g", "1", "--expires", "1h")
    await made.needs(*model(MODEL, "--adapters-root", "/lora"))
    return made


async def test_every_verb_has_a_case() -> None:
    found = set(leaves(muster, "", click.Context(muster)))
    assert found - CASES.keys() == set(), "verbs that no case runs against a real gateway"
    assert CASES.keys() - found == set(), "cases of verbs that there are not"


@pytest.mark.parametrize("verb", sorted(CASES))
async def test_a_verb_understands_the_real_gateway(command: Command, verb: str) -> None:
    for each in CASES[verb]:
        for line in each.before:
            await command.needs(*line)
        code, out = await command.run(*each.argv, stdin=each.stdin, ends=each.ends)
        said = f"muster {' '.join(each.argv)} ended with {code}:\n{out}"
        assert code == each.code, said
        assert each.says in out and not WRONG.search(out), said
