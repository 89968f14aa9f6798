"""Which attempts an error of a device hits, and as what they then end. Pure.

An error of an application is of the one process that made it: where several have the device and
nobody knows whose it was, it ends none of them. An error of hardware hits all that have the device.
"""

from collections.abc import Sequence

import msgspec

from libs.common.devices import error_catalogue as e
from libs.common.devices.error_catalogue import Judgement
from libs.common.facts import GpuErrorSeen
from libs.common.model import AttemptRef, GpuId, NodeId
from libs.common.reasons import GPU_ERROR, GPU_FAULT


class Hit(msgspec.Struct, frozen=True):
    """`reason` is what JobFinished says of an attempt that then ends badly."""

    reason: str
    detail: str


def of(judged: Judgement, having: Sequence[str], own: str) -> list[str]:
    """Of the attempts that have the device those that are hit; `own` is the one whose process made
    the error, where that is known.
    """
    if judged.cause != e.APPLICATION or len(having) == 1:
        return list(having)
    return [own] if own in having else []


def seen(
    node_id: NodeId,
    uuid: GpuId,
    told: tuple[str, str, str],
    refs: tuple[AttemptRef, ...],
    shadow: bool,
    text: str,
) -> GpuErrorSeen:
    """The fact of an error; `told` are its name, what is done about it, and who told of it."""
    error, verdict, source = told
    return GpuErrorSeen(
        node_id=node_id,
        uuid=uuid,
        error=error,
        verdict=verdict,
        source=source,
        jobs=refs,
        shadow=shadow,
        detail=text,
    )


def worse(before: Hit | None, judged: Judgement, detail: str) -> Hit | None:
    """What hardware did goes before what the application did: a job pays for its own
    errors alone.
    """
    if judged.verdict == e.IGNORE or (before is not None and before.reason == GPU_FAULT):
        return before
    hit = Hit(GPU_ERROR if judged.cause == e.APPLICATION else GPU_FAULT, detail)
    return hit if before is None or hit.reason == GPU_FAULT else before
