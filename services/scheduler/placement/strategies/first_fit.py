"""The first node that serves, by the order of registration. Pure."""

from services.scheduler.placement.place import Place, Take
from services.scheduler.placement.scene import Scene
from services.scheduler.placement.wish import Wish


def score(place: Place, take: Take, wish: Wish, scene: Scene) -> int:
    return 0
