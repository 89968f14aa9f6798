"""The tightest: the device with the least free that serves, then the node with the fewest free ones, so that whole ones stay whole.

Pure.
"""

from services.scheduler.placement.place import Place, Take
from services.scheduler.placement.scene import Scene
from services.scheduler.placement.wish import Wish


def score(place: Place, take: Take, wish: Wish, scene: Scene) -> int:
    return -((take.left - take.share) << 8) - place.whole.bit_count()
