"""The resource request: what a job asks of nodes and devices. Jobs with equal requests are equal
for placement.

Pure. Other parts of a job's spec, such as its command, do not matter for placement.
"""

import re
from functools import lru_cache
from typing import Final

import msgspec

from libs.common.devices import mig
from libs.common.devices.means import MPS_VENDORS, needed
from libs.common.model import (
    LEVELS,
    MIG,
    MPS,
    NO_CARE,
    REQUIRED,
    WHOLE_GPU,
    Gpu,
    GpuId,
    JobSpec,
    NodeId,
)

# The levels within a node.
INSIDE: Final = LEVELS[:4]
# Step of CPUs in which nodes are compared, in thousandths of a CPU.
STEP_MILLI: Final = 2_000
_WORDS: Final = re.compile(r"[^a-z0-9]+")


class ResourceRequest(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """The request of one job. Fields as in JobSpec, per node.

    `share` is 0 if memory or a MIG profile determines the part. `required` and `ignored` name
    topology levels. `means` are isolation means that a node must not have lost
    (`libs/common/devices/means.py`). `excluded` are nodes that refused the job lately.
    `memory_bytes` contains the host pool. `pool` are bytes of each device, which its part must
    contain; `pools` are all pool bytes of one node, which count against the tenant's limit.
    """

    nodes: int = 1
    gpus: int = 1
    share: int = WHOLE_GPU
    gpu_memory: int = 0
    mig_profile: str = ""
    isolation: str = ""
    vendor: str = ""
    model: tuple[str, ...] = ()
    memory_min: int = 0
    capability: tuple[int, int] = (0, 0)
    cpus_milli: int = 0
    memory_bytes: int = 0
    pool: int = 0
    pools: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    node_list: tuple[NodeId, ...] = ()
    uuids: tuple[GpuId, ...] = ()
    anti_affinity: tuple[tuple[str, str], ...] = ()
    required: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    mixed: bool = False
    strategy: str = ""
    means: tuple[str, ...] = ()
    excluded: tuple[NodeId, ...] = ()

    @property
    def whole(self) -> bool:
        """True if the job needs whole devices."""
        return self.share == WHOLE_GPU

    @property
    def asks_resources_only(self) -> bool:
        """True if nodes of equal build that run no job are equal for the request."""
        return not (self.labels or self.node_list or self.uuids or self.means or self.excluded)

    @property
    def total_share(self) -> int:
        """Hundredths of a GPU over all nodes; 0 if that depends on the GPU model."""
        return self.nodes * self.gpus * self.share

    def least_share_on(self, card_bytes: int) -> int:
        """Return the same; if it depends on the GPU model, the least possible.

        `card_bytes` is the memory of the largest card that there is, or was.
        """
        part = self.share
        if not part:
            by_memory = -(-WHOLE_GPU * self.gpu_memory // card_bytes) if card_bytes else 0
            part = min(WHOLE_GPU, max(1, by_memory))
        return self.nodes * self.gpus * part

    @property
    def ranked(self) -> "ResourceRequest":
        """The request whose ranking serves this one.

        Requests that differ little in what they ask of the host share a ranking; `choose.py` checks
        the host.
        """
        if self.nodes > 1:
            return msgspec.structs.replace(self, nodes=1, pools=0)
        return msgspec.structs.replace(
            self,
            cpus_milli=self.cpus_milli // STEP_MILLI * STEP_MILLI,
            memory_bytes=0,
            pools=0,
        )

    def need(self, gpu: Gpu) -> int:
        """Return the hundredths of this device that one member needs; 0 if the device
        cannot serve.
        """
        if not self._serves(gpu):
            return 0
        part = self._part(gpu)
        return part if not self.pool or part_bytes(gpu, part) >= self.pool else 0

    def _part(self, gpu: Gpu) -> int:
        if self.mig_profile:
            card = mig.card_of(gpu.mig_profiles)
            return mig.share(card, self.mig_profile) if mig.masks(card, self.mig_profile) else 0
        if self.gpu_memory:
            return (
                -(-WHOLE_GPU * self.gpu_memory // gpu.memory_bytes)
                if self.gpu_memory <= gpu.memory_bytes
                else 0
            )
        return self.share

    def _serves(self, gpu: Gpu) -> bool:
        return (
            (not gpu.mig or bool(self.mig_profile))
            and gpu.memory_bytes >= self.memory_min
            and gpu.compute_capability >= self.capability
            and self.vendor.lower() in ("", gpu.vendor.lower())
            and (not self.model or any(is_model(name, gpu.model) for name in self.model))
            and (not self.uuids or gpu.uuid in self.uuids)
            and (self.isolation != MPS or gpu.vendor in MPS_VENDORS)
        )


def part_bytes(gpu: Gpu, hundredths: int) -> int:
    """Return the memory of this part of the device."""
    return gpu.memory_bytes * hundredths // WHOLE_GPU


def request_of(spec: JobSpec, excluded: tuple[NodeId, ...] = ()) -> ResourceRequest:
    """Return the resource request of this spec."""
    levels = {level: getattr(spec, level) for level in LEVELS}
    if not spec.allow_cross_numa:
        levels["numa"] = REQUIRED
    return ResourceRequest(
        nodes=spec.nodes,
        gpus=spec.gpus,
        share=0 if spec.gpu_memory_bytes or spec.mig_profile else spec.gpu_share,
        gpu_memory=spec.gpu_memory_bytes,
        mig_profile=spec.mig_profile,
        isolation=MIG if spec.mig_profile else spec.isolation,
        vendor=spec.vendor,
        model=spec.model,
        memory_min=spec.memory_total_min_bytes,
        capability=spec.compute_capability_min,
        cpus_milli=spec.cpus_milli,
        memory_bytes=spec.host_bytes,
        pool=spec.pool_bytes,
        pools=spec.pools_on_node_bytes,
        labels=tuple(sorted(spec.node_labels.items())),
        node_list=spec.node_list,
        uuids=spec.gpu_uuids,
        anti_affinity=tuple(sorted(spec.anti_affinity.items())),
        required=tuple(level for level, word in levels.items() if word == REQUIRED),
        ignored=tuple(level for level, word in levels.items() if word == NO_CARE),
        mixed=spec.mixed,
        strategy=spec.placement,
        means=needed(spec),
        excluded=excluded,
    )


@lru_cache(4_096)
def is_model(name: str, model: str) -> bool:
    """Return whether all words of `name` occur in the model's name.

    H100 matches "NVIDIA H100 80GB HBM3"; A10 does not match "NVIDIA A100".
    """
    return set(_words(name)) <= set(_words(model))


def _words(text: str) -> list[str]:
    return [word for word in _WORDS.split(text.lower()) if word]
