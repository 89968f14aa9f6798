"""Libraries built from C that replace the vendors', and the files through which a test sets their
answers (fake.h).
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NVML = "libnvidia-ml.so.1"
AMD_SMI = "libamd_smi.so"
ZE_LOADER = "libze_loader.so.1"


def build(folder: Path, name: str, *sources: Path, without: str = "") -> Path:
    """Build a shared library from C; `without` names a function to leave out."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to build the libraries that stand in for the vendors'")
    folder.mkdir(parents=True, exist_ok=True)
    renamed = [f"-D{without}=gone_{without}"] if without else []
    strict = ["-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [
            compiler,
            *strict,
            *renamed,
            f"-Wl,-soname,{name}",
            f"-I{HERE}",
            "-o",
            folder / name,
            *sources,
        ],
        check=True,
    )
    return folder / name


def build_amd(folder: Path, without: str = "") -> Path:
    """Build AMD's library; all functions that the binding looks up on import exist."""
    found = importlib.util.find_spec("amdsmi")
    if found is None or not found.submodule_search_locations:
        pytest.skip("AMD's binding is not installed: pip install 'muster-gpu[amd]'")
    wrapper = (Path(found.submodule_search_locations[0]) / "amdsmi_wrapper.py").read_text()
    named = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper))
    rest = named - set(re.findall(r"^int (\w+)\(", (HERE / "amdsmi.c").read_text(), re.MULTILINE))
    folder.mkdir(parents=True, exist_ok=True)
    unused = folder / "unused.c"
    unused.write_text("".join(f"int {name}(void) {{ return 2; }}\n" for name in sorted(rest)))
    return build(folder, AMD_SMI, HERE / "amdsmi.c", unused, without=without)


class Fakes:
    """Settings of the fake libraries of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tell(self, vendor: str, *lines: str) -> None:
        """Replace all settings of this vendor's library."""
        whole = self.folder / f"{vendor}.new"
        whole.write_text("".join(f"{line}\n" for line in lines))
        whole.rename(self.folder / vendor)

    def happen(self, vendor: str, device: int, kind: int, data: int) -> None:
        with (self.folder / f"{vendor}.events").open("a") as file:
            file.write(f"{device} {kind} {data}\n")
