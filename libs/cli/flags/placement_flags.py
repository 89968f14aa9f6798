"""Where a job or a model may run, as flags; part of `jobflags.py` and `modelflags.py`.

The gateway reads the values.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from libs.cli.flags.numbers import Number
from libs.common.model import LEVEL_WORDS

F = TypeVar("F", bound=Callable[..., Any])

# Flags that are mappings: their values are K=V.
PAIRS: Final = {"node_labels": "--node-label", "anti_affinity": "--anti-affinity"}

_WHAT: Final = {
    "interconnect": "Its GPUs on a node in one group of NVLink or XGMI links",
    "switch": "... behind one PCIe switch",
    "numa": "... at one NUMA node",
    "socket": "... at one socket",
    "rack": "Its nodes in one rack",
    "spine": "... under one spine",
}


def _level(level: str) -> Callable[[F], F]:
    return click.option(
        f"--{level}",
        type=click.Choice(LEVEL_WORDS),
        help=f"{_WHAT[level]}: required, preferred (default) or none.",
    )


# Of jobs on one node, as a model's replicas are.
NODE_FLAGS = (
    click.option(
        "--cpus",
        type=Number(),
        metavar="N",
        help="CPUs of each node, 0.5 or 16; with --gpus 0 a job without GPUs.",
    ),
    click.option("--memory", metavar="SIZE", help="Host memory of each node: 64GiB."),
    click.option(
        "--gpu-memory",
        metavar="SIZE",
        help="So much memory of each GPU, in place of --fraction: 10GiB.",
    ),
    click.option(
        "--gpu-memory-min", metavar="SIZE", help="Only GPUs with so much memory in all: 40GiB."
    ),
    click.option(
        "--gpu-model",
        "model",
        metavar="NAME",
        help="Only GPUs of this model, or of one of these: 'H100|A100'.",
    ),
    click.option(
        "--vendor", metavar="NAME", help="Only GPUs of this vendor: nvidia, amd, intel, simulated."
    ),
    click.option(
        "--compute-capability",
        metavar="X.Y",
        help="Only GPUs of this compute capability or a higher one: 8.0.",
    ),
    click.option(
        "--mig", "mig_profile", metavar="PROFILE", help="MIG instances in place of GPUs: 1g.10gb."
    ),
    click.option(
        "--isolation",
        type=click.Choice(["mps", "mig", "time_slice"]),
        help="How parts of one GPU are kept apart (default: not at all).",
    ),
    click.option(
        "--node-label",
        "node_labels",
        multiple=True,
        metavar="K=V",
        help="Only nodes with this label; may be repeated.",
    ),
    click.option("-w", "--nodelist", "node_list", metavar="A,B", help="Only these nodes."),
    click.option(
        "--gpu-uuid",
        "gpu_uuids",
        multiple=True,
        metavar="UUID",
        help="Only these GPUs; may be repeated.",
    ),
    click.option(
        "--anti-affinity",
        "anti_affinity",
        multiple=True,
        metavar="K=V",
        help="Not on a node with a job of this label; may be repeated.",
    ),
    *(_level(level) for level in ("interconnect", "switch", "numa", "socket")),
    click.option(
        "--cross-numa/--no-cross-numa",
        "allow_cross_numa",
        default=None,
        help="Whether GPUs of a node may be at two NUMA nodes.",
    ),
    click.option(
        "--placement",
        metavar="STRATEGY",
        help="How its node is chosen, in place of the cluster's own way: best_fit.",
    ),
)
FLAGS = (
    *NODE_FLAGS,
    *(_level(level) for level in ("rack", "spine")),
    click.option("--mixed", is_flag=True, help="A gang may have GPUs of different models."),
)
