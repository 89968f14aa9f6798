"""Numbers and ranges of nodes."""

import click
import pytest

from libs.cli.flags.numbers import Nodes
from libs.cli.jobs import gpus_requested


@pytest.mark.parametrize(
    ("text", "nodes"), [("4", {"nodes": 4}), ("2..8", {"nodes": 2, "nodes_max": 8})]
)
def test_the_nodes_flag_takes_a_number_or_a_range(text: str, nodes: dict[str, int]) -> None:
    assert Nodes().convert(text, None, None) == Nodes().convert(nodes, None, None) == nodes


@pytest.mark.parametrize("text", ["", "two", "2-8", "2..", "-1", "1.5"])
def test_an_invalid_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"use 4, or 2\.\.8"):
        Nodes().convert(text, None, None)


@pytest.mark.parametrize(
    ("nodes", "most", "text"), [(1, 1, "8"), (4, 4, "4x8"), (2, 8, "2..8x8"), (1, 2, "1..2x8")]
)
def test_the_requested_gpus_are_shown_in_one_word(nodes: int, most: int, text: str) -> None:
    assert gpus_requested({"nodes": nodes, "nodes_max": most, "gpus": 8}) == text
