"""What a deciding process does with its memory once it has replayed."""

import gc

from libs.common.service import YOUNG_MAX, freeze_collector


def test_what_a_replay_made_is_no_more_looked_at() -> None:
    thresholds = gc.get_threshold()
    replayed = [[number] for number in range(1_000)]
    try:
        freeze_collector()
        assert gc.get_freeze_count() > len(replayed) and gc.get_threshold()[0] == YOUNG_MAX
        assert not any(each is replayed for each in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
