"""Choose the attempts that a device error hits, and their end reasons. Pure.

An application error belongs to the process that made it. If several attempts share the device and
the process is unknown, it ends none of them. A hardware error hits all attempts on the device.
"""

from collections.abc import Sequence

import msgspec

from libs.common.devices import error_catalogue as e
from libs.common.devices.error_catalogue import Judgement
from libs.common.facts import GpuErrorSeen
from libs.common.model import AttemptRef, GpuId, NodeId
from libs.common.reasons import GPU_ERROR, GPU_FAULT


class Hit(msgspec.Struct, frozen=True):
    """A device error that hit an attempt.

    `reason` becomes the reason of JobFinished, if the attempt fails.
    """

    reason: str
    detail: str


def attempts_hit(judged: Judgement, having: Sequence[str], own: str) -> list[str]:
    """Return the keys of the attempts that an error hits.

    `having` are those that have the device; `own` is the one whose process made the error, if
    known.
    """
    if judged.cause != e.APPLICATION or len(having) == 1:
        return list(having)
    return [own] if own in having else []


def error_fact(
    node_id: NodeId,
    uuid: GpuId,
    judged_as: tuple[str, str, str],
    refs: tuple[AttemptRef, ...],
    shadow: bool,
    text: str,
) -> GpuErrorSeen:
    """Return the fact of an error; `judged_as` is its name, its verdict and its source."""
    error, verdict, source = judged_as
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


def worse_hit(before: Hit | None, judged: Judgement, detail: str) -> Hit | None:
    """Return the hit that explains an end best: hardware before application, the first before the
    later.
    """
    if judged.verdict == e.IGNORE or (before is not None and before.reason == GPU_FAULT):
        return before
    hit = Hit(GPU_ERROR if judged.cause == e.APPLICATION else GPU_FAULT, detail)
    return hit if before is None or hit.reason == GPU_FAULT else before
