"""MIG: what a card can be cut into, against the known rules of the cards."""

from itertools import product

import pytest

from libs.common.devices import mig
from libs.common.model import MIG, GpuHold, GpuId


def test_an_instance_begins_only_where_the_card_lets_it() -> None:
    assert mig.masks("A100 40GB", "3g.20gb") == (0b0000_1111, 0b1111_0000)
    assert mig.masks("A100 40GB", "1g.5gb") == tuple(1 << start for start in range(7))
    assert mig.masks("H100 80GB", "1g.5gb") == ()
    assert mig.masks("", "1g.5gb") == ()


@pytest.mark.parametrize("card", mig.CARDS)
def test_every_instance_lies_within_its_card(card: str) -> None:
    whole = (1 << mig.card_slices(card)) - 1
    assert all(
        mask & ~whole == 0 and mask.bit_count() == profile.slices
        for name, profile in mig.CARDS[card].items()
        for mask in mig.masks(card, name)
    )


@pytest.mark.parametrize("card", mig.CARDS)
def test_instances_that_share_no_slice_are_within_the_whole_card(card: str) -> None:
    names = list(mig.CARDS[card])
    for chosen in product(names, repeat=3):
        for places in product(*(mig.masks(card, name) for name in chosen)):
            if (
                sum(mask.bit_count() for mask in places)
                == (places[0] | places[1] | places[2]).bit_count()
            ):
                assert sum(mig.share(card, name) for name in chosen) <= 100


def test_a_card_is_known_by_what_its_driver_says_it_can_be_cut_into() -> None:
    assert mig.card_of(("1g.5gb", "2g.10gb", "7g.40gb")) == "A100 40GB"
    assert mig.card_of(("1g.18gb",)) == "H200 141GB"
    assert mig.card_of(()) == "" and mig.card_of(("1g.1gb",)) == ""


def test_attempt_owns_the_card_slices_of_its_instances() -> None:
    whole, part = (
        GpuHold(GpuId("a")),
        GpuHold(uuid=GpuId("b"), share=50, isolation=MIG, mig_profile="3g.40gb", mig_slices=0b1111),
    )
    assert mig.slices_of([whole, part]) == {GpuId("b"): 0b1111}


def test_a_card_is_named_by_its_model_and_memory_when_its_driver_names_no_instances() -> None:
    assert mig.card_named("NVIDIA A100-SXM4-80GB", 80 << 30) == "A100 80GB"
    assert mig.card_named("NVIDIA A100-PCIE-40GB", 40 << 30) == "A100 40GB"
    assert mig.card_named("NVIDIA H200", 140 << 30) == "H200 141GB"
    assert mig.card_named("NVIDIA A30", 24 << 30) == "A30"
    assert mig.card_named("NVIDIA A10", 24 << 30) == ""
