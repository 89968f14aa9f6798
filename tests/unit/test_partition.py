"""Which devices are parts of one card."""

from libs.common.devices.partition import card_of, on_cards_of, one_of_each_card, part_id
from libs.common.devices.visibility import visibility
from libs.common.model import Gpu, GpuId


def test_the_parts_of_a_card_are_known_by_their_ids() -> None:
    assert [part_id("GPU-a", part) for part in range(3)] == ["GPU-a", "GPU-a.1", "GPU-a.2"]
    assert card_of("GPU-a") == card_of("GPU-a.2") == "GPU-a" != card_of("GPU-b.2")
    every = [GpuId(uuid) for uuid in ("GPU-a", "GPU-a.1", "GPU-b", "GPU-b.1")]
    assert list(on_cards_of(every, [GpuId("GPU-a.3")])) == ["GPU-a", "GPU-a.1"]
    assert on_cards_of(every, []) == {}
    assert one_of_each_card(every[1:]) == ["GPU-a.1", "GPU-b"]


def test_parts_of_one_card_are_seen_by_their_numbers_for_the_runtime_knows_one_id_of_them_all() -> (
    None
):
    gpus = [
        Gpu(uuid=GpuId(uuid), index=index, vendor="amd", model="M", memory_bytes=1)
        for index, uuid in enumerate(("GPU-a", "GPU-a.1", "GPU-b"))
    ]
    assert visibility(gpus[:2], gpus) == {"ROCR_VISIBLE_DEVICES": "0,1"}
    assert visibility(gpus[2:], gpus) == {"ROCR_VISIBLE_DEVICES": "2"}
    assert visibility(gpus[2:], gpus[2:]) == {"ROCR_VISIBLE_DEVICES": "GPU-b"}
