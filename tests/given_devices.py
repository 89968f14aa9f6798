"""A node with devices in the agent's core, its errors, and the facts that tests compare."""

from typing import Any

from libs.common import facts as f
from libs.common.devices.error_catalogue import Seen
from libs.common.devices.error_rows import catalogue
from libs.common.model import Gpu, GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import devices as d
from services.node_agent.core import kept_devices
from services.node_agent.core import observations as o
from tests.given_node import GPU, NODE, Node, ref

OTHER = GpuId("GPU-n-1")
GONE = o.Exit(executed=True, exit_code=None, signal=9, reason="stopped")


def gpus(count: int) -> list[Gpu]:
    return [
        Gpu(
            uuid=GpuId(f"GPU-n-{index}"),
            index=index,
            vendor="simulated",
            model="Simulated H100",
            memory_bytes=80 << 30,
        )
        for index in range(count)
    ]


def node(count: int = 8, **policy: Any) -> Node:
    made = Node()
    made.state.devices.policy = d.Policy(catalogue=catalogue(), **policy)
    kept_devices.restore(made.state.devices, "boot", gpus(count), b"")
    return made


def erred(
    error: str, uuid: GpuId = GPU, source: str = "driver", key: str = "", text: str = "words"
) -> o.DeviceErrorSeen:
    return o.DeviceErrorSeen(
        uuid,
        Seen(vendor="nvidia", model="NVIDIA H100", driver="610", error=error, text=text),
        source,
        key,
    )


def seen(
    error: str,
    verdict: str,
    *jobs: str,
    uuid: GpuId = GPU,
    source: str = "driver",
    shadow: bool = False,
) -> f.GpuErrorSeen:
    found = tuple(map(ref, jobs))
    return f.GpuErrorSeen(
        node_id=NODE,
        uuid=uuid,
        error=error,
        verdict=verdict,
        source=source,
        jobs=found,
        shadow=shadow,
        detail="words",
    )


def fault(
    reason: str,
    verdict: str,
    health: str = "offline",
    uuid: GpuId = GPU,
    detail: str = "words",
    source: str = "driver",
) -> f.GpuFaulted:
    return f.GpuFaulted(
        node_id=NODE,
        uuid=uuid,
        health=health,
        reason=reason,
        detail=detail,
        verdict=verdict,
        source=source,
    )


def resetting(verdict: str, uuid: GpuId = GPU) -> f.GpuFaulted:
    return f.GpuFaulted(
        node_id=NODE,
        uuid=uuid,
        health="resetting",
        reason="reset",
        detail=d.WHILE_RESET,
        verdict=verdict,
    )


def recorded(did: list[a.Action]) -> list[f.NodeFact]:
    return [fact for action in did if isinstance(action, a.Record) for fact in action.facts]


def others(did: list[a.Action]) -> list[a.Action]:
    return [action for action in did if not isinstance(action, a.Record | a.KeepDevices)]


def ended(made: Node, job: str = "j", end: o.Exit = GONE) -> list[f.NodeFact]:
    """The attempt's end and its clean devices."""
    made.see(o.ProcessExited(f"{job}.1", end))
    return recorded(made.see(o.ReleaseChecked(f"{job}.1", {"processes": "gone"}, True)))


def left(made: Node, job: str = "j") -> list[a.Action]:
    """The log has its last fact."""
    return made.see(o.FactsStored(30, (o.Mark(f"{job}.1", 3),)))
