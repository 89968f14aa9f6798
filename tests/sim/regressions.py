"""Seeds that once found a bug, each with the rule that it holds now. A seed is never removed: `test_sim.py` runs them all."""

from typing import Final

SEEDS: Final[dict[int, str]] = {
    7: "a restarted scheduler replays its own commits instead of standing down for ever",
    8: "a node that was taken back is not lost again before it could hear of it",
}
