"""The flags that say where a job or a model may run; part of `jobflags.py` and `modelflags.py`.

The gateway checks the values.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from libs.cli.flags.numbers import Number
from libs.common.model import LEVEL_WORDS

F = TypeVar("F", bound=Callable[..., Any])

# Flags whose values are K=V, by field.
PAIRS: Final = {"node_labels": "--node-label", "anti_affinity": "--anti-affinity"}

_MEANINGS: Final = {
    "interconnect": "GPUs of a node within one NVLink or XGMI group",
    "switch": "GPUs of a node behind one PCIe switch",
    "numa": "GPUs of a node on one NUMA node",
    "socket": "GPUs of a node on one CPU socket",
    "rack": "All nodes in one rack",
    "spine": "All nodes under one spine switch",
}


def _level(level: str) -> Callable[[F], F]:
    return click.option(
        f"--{level}",
        type=click.Choice(LEVEL_WORDS),
        help=f"{_MEANINGS[level]}: required, preferred (default) or none.",
    )


# Flags that also fit a replica of a model, which runs on one node.
NODE_FLAGS = (
    click.option(
        "--cpus",
        type=Number(),
        metavar="N",
        help="CPUs on each node, for example 0.5 or 16. With --gpus 0 the job has no GPU.",
    ),
    click.option("--memory", metavar="SIZE", help="Host memory on each node, for example 64GiB."),
    click.option(
        "--pool",
        metavar="SIZE",
        help=(
            "Memory pool of the job on each GPU, granted by the node's memory broker. It is a part "
            "of the job's own GPU or fraction."
        ),
    ),
    click.option(
        "--host-pool",
        metavar="SIZE",
        help=(
            "Memory pool of the job in each node's host memory, pinned and near the GPUs. It is "
            "added to --memory."
        ),
    ),
    click.option(
        "--gpu-memory",
        metavar="SIZE",
        help="Memory of each GPU, instead of --fraction, for example 10GiB.",
    ),
    click.option(
        "--gpu-memory-min",
        metavar="SIZE",
        help="Use only GPUs with at least this total memory, for example 40GiB.",
    ),
    click.option(
        "--gpu-model",
        "model",
        metavar="NAME",
        help="Use only GPUs of this model; separate alternatives with |: 'H100|A100'.",
    ),
    click.option(
        "--vendor",
        metavar="NAME",
        help="Use only GPUs of this vendor: nvidia, amd, intel or simulated.",
    ),
    click.option(
        "--compute-capability",
        metavar="X.Y",
        help="Use only GPUs with at least this compute capability, for example 8.0.",
    ),
    click.option(
        "--mig",
        "mig_profile",
        metavar="PROFILE",
        help="Use MIG instances of this profile instead of whole GPUs, for example 1g.10gb.",
    ),
    click.option(
        "--isolation",
        type=click.Choice(["mps", "mig", "time_slice"]),
        help="Isolation between jobs that share a GPU (default: none).",
    ),
    click.option(
        "--node-label",
        "node_labels",
        multiple=True,
        metavar="K=V",
        help="Use only nodes with this label (repeatable).",
    ),
    click.option("-w", "--nodelist", "node_list", metavar="A,B", help="Use only these nodes."),
    click.option(
        "--gpu-uuid",
        "gpu_uuids",
        multiple=True,
        metavar="UUID",
        help="Use only this GPU (repeatable).",
    ),
    click.option(
        "--anti-affinity",
        "anti_affinity",
        multiple=True,
        metavar="K=V",
        help="Avoid nodes that run a job with this label (repeatable).",
    ),
    *(_level(level) for level in ("interconnect", "switch", "numa", "socket")),
    click.option(
        "--cross-numa/--no-cross-numa",
        "allow_cross_numa",
        default=None,
        help="Allow the GPUs of a node to lie on different NUMA nodes (default: yes).",
    ),
    click.option(
        "--placement",
        metavar="STRATEGY",
        help="Placement strategy, instead of the cluster's default, for example best_fit.",
    ),
)
FLAGS = (
    *NODE_FLAGS,
    *(_level(level) for level in ("rack", "spine")),
    click.option("--mixed", is_flag=True, help="Allow GPUs of different models in one job."),
    click.option(
        "--preflight",
        is_flag=True,
        help="Before a job of several nodes starts, measure the links between them for at most "
        "5 s, and avoid slow nodes.",
    ),
)
