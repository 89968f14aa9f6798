"""The means that a job needs on its node beside devices, and each node's report about them.

A node reports a means as enforced, or as lost and why (NodeRegistered.isolation). Pure.
Placement, `muster why` and the agent read this one rule: a job goes only where nothing that it
needs is lost. Tests: tests/unit/test_means.py, tests/unit/test_placement_means.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libs.common.model import IMAGES, MIG, MPS, POOLS, SHORT_ARRAYS, JobSpec

ENFORCED: Final = "enforced"
LOST: Final = "lost: "
# Vendors whose devices several jobs can share by `--isolation mps`
# (`services/node_agent/sharing/ways.py`).
MPS_VENDORS: Final = ("nvidia", "amd", "simulated")
# A key of NodeRegistered.isolation: the tenants whose jobs the node takes, if it does not take all.
TENANTS: Final = "tenants"
ONLY: Final = "only: "
# A key of NodeRegistered.isolation: the agent knows JobSpec.container.
CONTAINERS: Final = "containers"
# A node has every means that it does not report, except these: an agent that does not know them
# would run the job in a different way.
UNNAMED: Final = {
    IMAGES: f"{LOST}the agent of this node is older than jobs with an image",
    CONTAINERS: f"{LOST}the agent of this node is older than options of containers",
    POOLS: f"{LOST}the agent of this node is older than memory pools",
    SHORT_ARRAYS: f"{LOST}the agent of this node is older than short arrays",
}
# The flag by which a job asks for each means.
FLAGS: Final = {
    IMAGES: "--image",
    CONTAINERS: "--image",
    POOLS: "--pool",
    SHORT_ARRAYS: "--short",
    MPS: "--isolation mps",
    MIG: "--mig",
}


def lost(why: str) -> str:
    """Return a node's report about a means or a bound: lost because of `why`, or enforced."""
    return f"{LOST}{why}" if why else ENFORCED


def needed(spec: JobSpec) -> tuple[str, ...]:
    """Return the means without which no node can run this job."""
    image = (IMAGES,) if spec.image else ()
    options = (CONTAINERS,) if spec.container is not None else ()
    parts = (MIG,) if spec.mig_profile else (MPS,) if spec.isolation == MPS else ()
    pools = (POOLS,) if spec.pools_on_node_bytes else ()
    short = (SHORT_ARRAYS,) if spec.array is not None and spec.array.short else ()
    return image + options + pools + short + parts


def lacking(isolation: Mapping[str, str], means: Iterable[str]) -> str:
    """Return the first of these means that the node has lost; empty if it has them all."""
    return next(
        (name for name in means if isolation.get(name, UNNAMED.get(name, "")).startswith(LOST)), ""
    )


def why_lacking(isolation: Mapping[str, str], name: str) -> str:
    """Return the reason that the agent gave for a lost means."""
    return isolation.get(name, UNNAMED.get(name, "")).removeprefix(LOST)


def only_tenants(tenants: Iterable[str] | None) -> dict[str, str]:
    """Return a node's report that it takes jobs of these tenants only. None: it takes all."""
    return {} if tenants is None else {TENANTS: f"{ONLY}{', '.join(tenants)}"}


def takes_only(isolation: Mapping[str, str]) -> frozenset[str] | None:
    """Return the tenants whose jobs the node takes; None if it takes all."""
    report = isolation.get(TENANTS, "")
    return frozenset(report.removeprefix(ONLY).split(", ")) if report.startswith(ONLY) else None
