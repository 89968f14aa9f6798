"""One line about the GPUs of this machine, before the agent that owns them starts; asked of the agent's own code, in a child."""

import json
import subprocess
import sys
from collections import Counter
from typing import Final

SURVEY_S: Final = 20.0
COMMAND: Final = (sys.executable, "-P", "-m", "services.node_agent.drivers.vendor_calls")


def survey() -> str:
    try:
        done = subprocess.run(COMMAND, input="look\n", capture_output=True, text=True, timeout=SURVEY_S, check=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"the GPU drivers of this machine do not answer ({type(error).__name__}): `muster doctor` looks at them"
    if found["gpus"]:
        models = Counter(f"{gpu['vendor']} {gpu['model']}" for gpu in found["gpus"])
        return "GPUs of this machine: " + ", ".join(f"{count} x {model}" for model, count in models.items())
    return "no GPU was found on this machine (" + "; ".join(f"{vendor}: {why}" for vendor, why in found["missing"].items()) + ")"
