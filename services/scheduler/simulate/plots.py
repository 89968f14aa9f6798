"""Two plots of one or several runs, as SVG.

matplotlib (the extra `plots`) is imported only here, and only when plots are requested.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from libs.common.errors import Refused

HOUR: Final = 3_600.0
DAY: Final = 24 * HOUR
LACKING: Final = "plots need matplotlib: pip install 'muster-gpu[plots]', or leave out --plots"

Lines = Mapping[str, Sequence[tuple[float, float]]]


def drawing() -> ModuleType:
    """Return matplotlib's pyplot, set up to draw the same bytes for the same data.

    Raises Refused if it is not installed.
    """
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError as error:
        raise Refused(LACKING) from error
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "muster",
            "svg.fonttype": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    return pyplot  # type: ignore[no-any-return]


def draw_utilisation(path: Path, lines: Lines) -> None:
    """Plot the held GPUs over time."""
    longest = max((line[-1][0] for line in lines.values() if line), default=0.0)
    unit, name = (DAY, "days") if longest > 3 * DAY else (HOUR, "hours")
    _draw(
        path,
        {label: [(x / unit, y) for x, y in line] for label, line in lines.items()},
        f"{name} since the first job",
        "GPUs held, %",
    )


def draw_completion(path: Path, lines: Lines) -> None:
    """Plot the completed jobs over a logarithmic time axis that starts at one second."""
    scaled = {label: [(max(x, 1.0) / HOUR, y) for x, y in line] for label, line in lines.items()}
    _draw(path, scaled, "hours from submission to end", "jobs, %", xscale="log")


def _draw(path: Path, lines: Lines, xlabel: str, ylabel: str, xscale: str = "linear") -> None:
    pyplot = drawing()
    figure, axes = pyplot.subplots(figsize=(9, 4), layout="constrained")
    for label, line in lines.items():
        axes.plot([x for x, _ in line], [y for _, y in line], label=label, linewidth=1.2)
    axes.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, ylim=(0, 102))
    axes.margins(x=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
