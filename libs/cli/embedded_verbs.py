"""The state directory of the verbs for an embedded cluster (`up`, `down`, `clean` ...).

libs/embedded/commands.py does the work.
"""

from pathlib import Path
from typing import Final

from libs.client.profile import read_profile

DEFAULT_STATE: Final = Path(".muster")


def state_of(given: Path | None) -> Path:
    """Return --state, else ./.muster if it exists, else the directory that the profile names."""
    if given is not None or DEFAULT_STATE.exists():
        return given or DEFAULT_STATE
    remembered = read_profile().state
    return Path(remembered) if remembered else DEFAULT_STATE
