"""What `up`, `down` and `clean` share: the state directory.

The work is done in libs/embedded/commands.py.

`down` and `clean` act on the state directory of the profile, as `up` wrote it, unless --state says
another.
"""

from pathlib import Path
from typing import Final

from libs.cli.profile import read_profile

DEFAULT_STATE: Final = Path(".muster")


def state_of(given: Path | None) -> Path:
    """--state, else ./.muster where there is one, else what the profile remembers."""
    if given is not None or DEFAULT_STATE.exists():
        return given or DEFAULT_STATE
    remembered = read_profile().state
    return Path(remembered) if remembered else DEFAULT_STATE
