"""An order and a score for Muster's scheduler, as a package of your own
(docs/howto/add-a-policy.md).

`muster queue set default --policy smallest_first`; `muster submit --placement widest -- ...`.
"""

from typing import Any


def key(job: Any, queue: Any, now_ns: int) -> tuple[int, ...]:
    """Who asks for the least of GPUs goes first; the smallest key wins, of equals who was submitted
    first.
    """
    spec = job.spec
    return (spec.nodes * spec.gpus * spec.gpu_share,)


def score(place: Any, fit: Any, request: Any, mix: Any) -> int:
    """The node with the most wholly free GPUs; the highest score wins."""
    return int(place.whole.bit_count())
