"""Which version of this program runs."""

from typing import Final

DISTRIBUTION: Final = "muster-gpu"
NOT_INSTALLED: Final = "(not installed)"


def version() -> str:
    """Return the installed version, `(not installed)` for a folder of sources that no installer
    has seen.
    """
    from importlib.metadata import PackageNotFoundError, version  # slow; a command may not need it

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return NOT_INSTALLED
