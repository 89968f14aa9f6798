"""The GPUs of this machine, for `muster doctor` and for a line of `muster up --local`.

The agent's own survey finds them, in a process with a deadline, because a driver may hang.
"""

import json
import subprocess
import sys
from collections import Counter
from typing import Final

import msgspec

from libs.common.errors import Unavailable

# The first call into a driver without persistence mode wakes each GPU.
SURVEY_S: Final = 90.0
COMMAND: Final = (sys.executable, "-P", "-m", "services.node_agent.drivers.survey")


class Local(msgspec.Struct, frozen=True):
    """The GPUs of this machine.

    `there` maps a vendor to its GPUs ("2 x Fake H100"), `missing` a vendor to the reason why its
    driver cannot be used. `absent` maps the PCI address of a GPU that no driver shows to the
    reason. `cold` are the addresses of NVIDIA GPUs with persistence mode off.
    """

    there: dict[str, str]
    missing: dict[str, str]
    absent: dict[str, str] = {}
    cold: tuple[str, ...] = ()


def look(state: str = "") -> Local:
    """Survey the GPUs of this machine.

    `state` is the directory of an agent or a cluster that has seen its GPUs before. Raises
    Unavailable if the drivers do not answer.
    """
    try:
        done = subprocess.run(
            (*COMMAND, state) if state else COMMAND,
            capture_output=True,
            text=True,
            timeout=SURVEY_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"the GPU drivers of this machine do not answer ({type(error).__name__}): check the "
            "kernel log (dmesg)"
        ) from error
    models: dict[str, Counter[str]] = {}
    for gpu in found["gpus"]:
        models.setdefault(gpu["vendor"], Counter())[gpu["model"]] += 1
    there = {
        vendor: ", ".join(f"{count} x {model}" for model, count in counts.items())
        for vendor, counts in models.items()
    }
    return Local(
        there,
        found["missing"],
        {each["pci_bus"]: each["why"] for each in found["absent"]},
        tuple(found["cold"]),
    )


def survey() -> str:
    """Return one line about the GPUs of this machine."""
    try:
        found = look()
    except Unavailable as error:
        return str(error)
    if found.there:
        lost = "".join(f"; lost: {address} ({why})" for address, why in found.absent.items())
        return (
            "GPUs of this machine: "
            + "; ".join(f"{vendor}: {words}" for vendor, words in found.there.items())
            + lost
        )
    return (
        "no GPU was found on this machine ("
        + "; ".join(f"{vendor}: {why}" for vendor, why in found.missing.items())
        + ")"
    )
