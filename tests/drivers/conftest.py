"""Builds the fake vendors' libraries once for all tests of a process."""

import os
from pathlib import Path

import pytest

from tests.drivers.fakes import HERE, NVML, ZE_LOADER, Fakes, build, build_amd


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the built libraries."""
    folder = tmp_path_factory.mktemp("libraries")
    build(folder, NVML, HERE / "nvml.c")
    build_amd(folder)
    build(folder, ZE_LOADER, HERE / "zes.c")
    return folder


@pytest.fixture
def fakes(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    load_from(libraries, monkeypatch)
    monkeypatch.setenv("FAKE_DRIVERS", str(tmp_path))
    fakes = Fakes(tmp_path)
    for vendor in ("amd", "intel"):
        fakes.tell(vendor, "count * 0")
    return fakes


def load_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes load libraries from this folder first."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}")
