"""An order and a score for Muster's scheduler, as a package of your own
(docs/howto/add-a-policy.md).

`muster queue set default --policy smallest_first`; `muster submit --placement widest -- ...`.
"""

from typing import Any


def key(job: Any, queue: Any, now_ns: int) -> tuple[int, ...]:
    """Order jobs by the GPUs that they ask for. The smallest key goes first; ties go
    by submission.
    """
    spec = job.spec
    return (spec.nodes * spec.gpus * spec.gpu_share,)


def score(place: Any, fit: Any, request: Any, mix: Any) -> int:
    """Prefer the node with the most wholly free GPUs. The highest score wins."""
    return int(place.whole.bit_count())
