"""`muster version`."""

import click

DISTRIBUTION = "muster-gpu"


def version_line() -> str:
    """`muster 0.1.0`."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"muster {version(DISTRIBUTION)}"
    except PackageNotFoundError:
        return "muster (not installed)"


@click.command(short_help="Print the version.")
def command() -> None:
    """Print the version."""
    print(version_line())
