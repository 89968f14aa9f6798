"""The node of whose devices the least part is held, then the device that has the most free: load is spread. Pure."""

from libs.common.model import WHOLE_GPU
from services.scheduler.placement.place import Place, Take
from services.scheduler.placement.scene import Scene
from services.scheduler.placement.wish import Wish

STEPS = 1_000


def score(place: Place, take: Take, wish: Wish, scene: Scene) -> int:
    free = sum(place.lefts)
    return STEPS * free // max(1, len(place.views) * WHOLE_GPU) * WHOLE_GPU + take.left
