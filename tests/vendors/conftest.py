"""Each test of this folder runs over copies of libraries that are built once per process."""

from pathlib import Path
from typing import Final

import pytest

from tests.vendors.fakes import KINDS, Fake, compiled, copied

GUARD: Final = ("MUSTER_CUDA_LIBRARY", "MUSTER_HIP_LIBRARY", "MUSTER_LEVEL_ZERO_LIBRARY")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vendors")
    return {name: compiled(folder, name) for name in KINDS}


@pytest.fixture
def fakes(
    built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Fake]:
    monkeypatch.setenv("FAKE_DRIVERS", str(tmp_path))
    return {name: copied(name, path, tmp_path) for name, path in built.items()}


@pytest.fixture(params=KINDS)
def fake(request: pytest.FixtureRequest, fakes: dict[str, Fake]) -> Fake:
    return fakes[request.param]
