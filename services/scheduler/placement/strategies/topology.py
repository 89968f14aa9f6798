"""Where the fewest devices stay beside those that are taken: groups of links, switches and NUMA nodes are used up before others are
opened, racks before others. Pure.
"""

from services.scheduler.placement.place import Place, Take
from services.scheduler.placement.scene import Scene
from services.scheduler.placement.strategies import best_fit
from services.scheduler.placement.wish import Wish


def score(place: Place, take: Take, wish: Wish, scene: Scene) -> int:
    groups = place.hardware.groups
    touched = {group for device in take.devices for group in enumerate(groups[device])}
    beside = sum(1 for device, at in enumerate(groups) if place.whole >> device & 1 and not touched.isdisjoint(enumerate(at)))
    return best_fit.score(place, take, wish, scene) - (beside << 16)
