"""GPU time, energy and money as the command line shows them.

Pure. Tests: tests/unit/test_cli_use.py.
"""

from collections.abc import Mapping
from typing import Any, Final

from libs.cli.flags.sizes import show_size

SHARE_MS_PER_HOUR: Final = 360_000_000
MICROS: Final = 1_000_000
PLACES: Final = 10_000


def part_text(part: int, whole: int) -> str:
    """Return a part of a whole in percent; `-` without a whole."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def gpu_hours(share_ms: int) -> str:
    """Return a share in hours of a whole GPU."""
    return f"{share_ms / SHARE_MS_PER_HOUR:.2f}"


def energy_text(watt_hours: float | None) -> str:
    """Return an energy: `0.25 Wh`, `1.20 kWh`; `-` for none."""
    if not watt_hours:
        return "-"
    return f"{watt_hours / 1_000:.2f} kWh" if watt_hours >= 1_000 else f"{watt_hours:.2f} Wh"


def costs_text(costs: Mapping[str, int]) -> str:
    """Return costs in millionths as money, rounded to four places, by currency: `12.50 EUR`."""
    parts = [f"{_money(micros)} {currency}" for currency, micros in sorted(costs.items())]
    return ", ".join(parts) or "-"


def _money(micros: int) -> str:
    rounded = (micros * PLACES + MICROS // 2) // MICROS
    text = f"{rounded // PLACES}.{rounded % PLACES:04}"
    return text[:-2] if text.endswith("00") else text


def use_text(use: Mapping[str, Any], gpus: int) -> str:
    """Return one line about the use of a job's GPUs, of the `gpus` that it requested."""
    parts = [
        f"{use['average_percent']} % on average, {use['peak_percent']} % at most",
        f"{use['used']} of {gpus or use['devices']} requested busy at some time",
    ]
    if use.get("memory_bytes"):
        peak, size = use["memory_peak_bytes"], use["memory_bytes"]
        parts.append(f"memory {show_size(peak)} of {show_size(size)} at most")
    if use.get("energy_wh") is not None:
        parts.append(f"energy {use['energy_wh']:.2f} Wh")
    if use.get("shared"):
        parts.append("together with other jobs of the same GPUs")
    if use.get("simulated"):
        parts.append("simulated")
    return ", ".join(parts)
