"""The fingerprint of a build follows all its sources, and nothing else."""

from pathlib import Path

import pytest

from libs.common.agreement import build
from libs.common.agreement.build import digest_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folds").mkdir()
    (tmp_path / "folds" / "job_fold.py").write_text("KEPT = 10\n")
    (tmp_path / "fold.py").write_text("")
    return tmp_path


def test_a_bound_that_differs_makes_another_build(folder: Path) -> None:
    before = digest_of(folder)
    (folder / "folds" / "job_fold.py").write_text("KEPT = 11\n")
    assert digest_of(folder) != before


def test_a_file_with_another_name_makes_another_build(folder: Path) -> None:
    before = digest_of(folder)
    (folder / "fold.py").rename(folder / "folds" / "fold.py")
    assert digest_of(folder) != before


def test_compiled_files_and_the_place_of_the_folder_do_not_matter(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = digest_of(folder)
    (folder / "folds" / "job_fold.pyc").write_bytes(b"\0")
    moved = tmp_path_factory.mktemp("elsewhere") / "common"
    folder.rename(moved)
    assert digest_of(moved) == before


def test_the_sources_hold_the_fold_the_state_and_the_facts() -> None:
    for name in ("fold.py", "folds/job_fold.py", "state/cluster.py", "facts/job_facts.py"):
        assert (build.SOURCES / name).is_file()
    assert len(build.fingerprint()) == 2 * build.DIGEST_BYTES
