"""The widest: the device with the most free, then the node with the most free devices. Pure."""

from services.scheduler.placement.place import Place, Take
from services.scheduler.placement.scene import Scene
from services.scheduler.placement.wish import Wish


def score(place: Place, take: Take, wish: Wish, scene: Scene) -> int:
    return (take.left << 8) + place.whole.bit_count()
