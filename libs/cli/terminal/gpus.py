"""GPUs as a table."""

from collections.abc import Iterable
from typing import Final

from libs.cli.gateway import Json
from libs.cli.terminal.output import print_table
from libs.cli.terminal.table import Column, natural, state_colour

GIB: Final = 1 << 30
WHOLE: Final = 100

COLUMNS: Final = (
    Column("NODE"),
    Column("GPU", right=True),
    Column("MODEL", flexible=True),
    Column("MEMORY", right=True),
    Column("STATE", colour_of=state_colour),
    Column("HELD", right=True),
    Column("JOBS", flexible=True),
    Column("REASON", flexible=True),
)
WIDE_COLUMNS: Final = (
    *COLUMNS,
    Column("HEALTH", colour_of=state_colour),
    Column("VENDOR"),
    Column("UUID"),
    Column("SET"),
    Column("DETAIL"),
)


def print_gpus(gpus: Iterable[Json], wide: bool, no_headers: bool) -> None:
    """Print GPUs, sorted by node and index."""
    rows = [_row(gpu, wide) for gpu in sorted(gpus, key=_place)]
    print_table(WIDE_COLUMNS if wide else COLUMNS, rows, not no_headers, wide)


def _place(gpu: Json) -> tuple[list[tuple[int, str]], int]:
    return natural(str(gpu["node_id"])), int(gpu["index"])


def _row(gpu: Json, wide: bool) -> list[str]:
    held = int(gpu.get("held_share") or 0)
    cells = [
        str(gpu.get("node_id")),
        str(gpu.get("index")),
        str(gpu.get("model") or "-"),
        f"{int(gpu.get('memory_bytes') or 0) / GIB:.0f} GiB",
        str(gpu.get("state") or "-").lower(),
        f"{held}%" if held else "-",
        ", ".join(_holder(holder) for holder in gpu.get("holders") or ()) or "-",
        str(gpu.get("reason") or ""),
    ]
    more = [
        str(gpu.get("health") or "-"),
        str(gpu.get("vendor") or "-"),
        str(gpu.get("uuid")),
        _set(gpu),
        str(gpu.get("detail") or ""),
    ]
    return cells + more if wide else cells


def _set(gpu: Json) -> str:
    """Return the controls in force: `power 300, clocks 1200-1500`."""
    in_force = {name: control["in_force"] for name, control in (gpu.get("controls") or {}).items()}
    return ", ".join(f"{name} {value}" for name, value in in_force.items() if value) or "-"


def _holder(holder: Json) -> str:
    """Return a job id, with its share if it holds a part: `j4f2a5lc6kq 25%`."""
    job_id, share = str(holder["job_id"]), int(holder.get("share") or WHOLE)
    return job_id + ("" if share == WHOLE else f" {share}%")
