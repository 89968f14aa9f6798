"""GPU time, energy and money on the command line."""

from typing import Any

from libs.cli import use as u


def test_parts_and_hours() -> None:
    assert (u.part_text(1, 3), u.part_text(0, 0)) == ("33.3%", "-")
    assert u.gpu_hours(540_000_000) == "1.50"


def test_energy_has_the_unit_that_fits() -> None:
    assert [u.energy_text(each) for each in (None, 0, 0.5, 1_500)] == [
        "-",
        "-",
        "0.50 Wh",
        "1.50 kWh",
    ]


def test_costs_are_rounded_to_four_places() -> None:
    assert u.costs_text({"EUR": 12_500_000, "USD": 1_234_567}) == "12.50 EUR, 1.2346 USD"
    assert u.costs_text({"USD": 1_000_000, "EUR": 2_000_000}) == "2.00 EUR, 1.00 USD"
    assert u.costs_text({}) == "-"


def test_the_use_of_a_job_in_one_line() -> None:
    use: dict[str, Any] = {
        "average_percent": 12,
        "peak_percent": 80,
        "used": 1,
        "devices": 4,
        "memory_peak_bytes": 1 << 30,
        "memory_bytes": 80 << 30,
        "energy_wh": 0.25,
        "shared": True,
        "simulated": True,
    }
    assert u.use_text(use, 4) == (
        "12 % on average, 80 % at most, 1 of 4 requested busy at some time, memory 1.0 GiB of "
        "80.0 GiB at most, energy 0.25 Wh, together with other jobs of the same GPUs, simulated"
    )
    assert u.use_text(
        {**use, "memory_bytes": None, "energy_wh": None, "shared": False}, 0
    ).endswith("1 of 4 requested busy at some time, simulated")


def test_the_use_of_real_devices_is_not_called_simulated() -> None:
    use = {"average_percent": 0, "peak_percent": 0, "used": 0, "devices": 1}
    assert u.use_text(use, 1).endswith("0 of 1 requested busy at some time")
