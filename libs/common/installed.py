"""Return the version of this program."""

from typing import Final

DISTRIBUTION: Final = "muster-gpu"
NOT_INSTALLED: Final = "(not installed)"


def version() -> str:
    """Return the installed version, `(not installed)` for a folder of sources that no installer
    has seen.
    """
    from importlib import metadata  # slow, and most commands do not need it

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
