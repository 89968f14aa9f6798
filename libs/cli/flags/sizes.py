"""Sizes in bytes: parses `10GiB` or `500M`, shows `1.4 GiB`.

Pure. Tests: tests/unit/test_cli_sizes.py.
"""

import re
from typing import Final

STEPS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
EXPECTED: Final = "a number of bytes, 500MiB, 10GiB or 2T (units of 1024)"

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the number of bytes. Raises ValueError with the accepted forms."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: use {EXPECTED}")
    return int(float(match[1]) * 1024 ** " kmgt".index((match[2] or " ").lower()))


def show_size(size_bytes: int) -> str:
    """Return the size in the largest unit that fits: `0 B`, `1.4 GiB`."""
    step = min(max(size_bytes.bit_length() - 1, 0) // 10, len(STEPS) - 1)
    return f"{size_bytes / 1024**step:.1f} {STEPS[step]}" if step else f"{size_bytes} B"
