"""Estimates how many tokens a text has, from the usage that replicas reported for earlier ones.

No tokenizer is needed: for each class of script the ratio of tokens to bytes is learnt. Pure; the
ratio is a whole number of millionths. Tests: tests/unit/test_serving_token_estimate.py.
"""

from typing import Final

MILLION: Final = 1_000_000
# English text has about four bytes per token.
FIRST_RATIO: Final = MILLION // 4
# Each report moves the ratio by this part of the difference.
STEP: Final = 20
# A report beyond one token per byte, or far below a token per kilobyte, is not about text.
RATIO_MAX: Final = MILLION
RATIO_MIN: Final = MILLION // 1_024
# Smaller prompts teach nothing: most of their tokens are those of the model's chat template.
LEARNT_BYTES: Final = 1_024
# Bytes that decide the class of script.
LOOKED_AT: Final = 512
ASCII: Final = "ascii"
MIXED: Final = "mixed"
OTHER: Final = "other"


def script_of(text: bytes) -> str:
    """Return the class of script: by the part of bytes outside of ASCII at the text's end."""
    end = text[-LOOKED_AT:]
    beyond = len(end) - len(end.decode("ascii", "ignore"))
    if 10 * beyond <= len(end):
        return ASCII
    return MIXED if 2 * beyond < len(end) else OTHER


class TokenEstimate:
    """The ratios of one model."""

    def __init__(self) -> None:
        self._ratios = {ASCII: FIRST_RATIO, MIXED: FIRST_RATIO, OTHER: FIRST_RATIO}

    def tokens(self, size: int, script: str = ASCII) -> int:
        """Return the tokens of `size` bytes of text, at least one."""
        return max(1, size * self._ratios[script] // MILLION)

    def learn(self, size: int, script: str, prompt_tokens: int) -> None:
        """Learn from `usage.prompt_tokens` of a prompt of `size` bytes, if it is large enough."""
        if size < LEARNT_BYTES or prompt_tokens <= 0:
            return
        seen = min(RATIO_MAX, max(RATIO_MIN, prompt_tokens * MILLION // size))
        self._ratios[script] += (seen - self._ratios[script]) // STEP
