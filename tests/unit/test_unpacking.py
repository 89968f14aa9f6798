"""An archive of anybody's making becomes a directory whole, or nothing is left of it; nothing
outside is ever touched.
"""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.common.errors import Refused
from libs.common.safety import unpacking
from libs.common.safety.unpacking import unpack

FILES_MAX = 100


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size, made.mode = kind, link, len(data), mode
    return made, data


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for made, data in members:
            tar.addfile(made, io.BytesIO(data))
    file.seek(0)
    return file


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.SYMTYPE, link=target)


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.DIRTYPE, mode=0o755)


WHOLE = (
    folder("bin"),
    member("bin/run", b"#!", mode=0o755),
    member("a", b"x" * 3_000),
    link("bin/again", "../a"),
    link("here", "."),
)


@pytest.mark.parametrize("stream", [False, True])
def test_files_folders_and_links_within_come_out_as_they_went_in(
    tmp_path: Path, stream: bool
) -> None:
    into = tmp_path / "job"
    unpack(archive(*WHOLE), into, FILES_MAX, stream=stream)
    assert (into / "a").read_bytes() == b"x" * 3_000 and (
        into / "bin/again"
    ).read_bytes() == b"x" * 3_000
    assert (
        os.readlink(into / "bin/again") == "../a"
        and os.access(into / "bin/run", os.X_OK)
        and not os.access(into / "a", os.X_OK)
    )
    assert stat.S_IMODE(into.stat().st_mode) == 0o700


HOSTILE = {
    "an absolute name": (member("/etc/x", b"x"),),
    "a name above": (member("../x", b"x"),),
    "a name above later": (folder("a"), member("a/../../x", b"x")),
    "a name that is a dot": (folder("."),),
    "an empty name": (member("a//b", b"x"),),
    "a device": (member("null", kind=tarfile.CHRTYPE),),
    "a pipe": (member("pipe", kind=tarfile.FIFOTYPE),),
    "a hard link": (member("a", b"x"), member("b", kind=tarfile.LNKTYPE, link="a")),
    "a hard link out": (member("b", kind=tarfile.LNKTYPE, link="/etc/passwd"),),
    "an absolute link": (link("a", "/etc"),),
    "a link above": (link("a", ".."),),
    "a link out of a folder": (folder("a"), link("a/b", "../../out")),
    "links that lead out together": (
        folder("d"),
        folder("d/e"),
        link("d/e/x", "."),
        link("y", "d/e/x/../../.."),
    ),
    "a file through a link": (link("a", ".."), member("a/x", b"x")),
    "a file through a link within": (folder("b"), link("a", "b"), member("a/x", b"x")),
    "a file over a link": (link("a", "../out"), member("a", b"x")),
    "a name twice": (member("a", b"x"), member("a", b"y")),
    "a folder twice": (folder("a"), folder("a")),
    "a file below a file": (member("a", b"x"), member("a/b", b"x")),
    "no folder before its file": (member("a/b", b"x"),),
    "a name too long": (member("n" * 300, b"x"),),
    "too many": tuple(member(f"f{number}") for number in range(FILES_MAX + 1)),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_whole_and_touches_nothing_outside(
    tmp_path: Path, what: str, stream: bool
) -> None:
    (tmp_path / "out").write_bytes(b"untouched")
    with pytest.raises(Refused):
        unpack(
            archive(member("before", b"x"), *HOSTILE[what]),
            tmp_path / "job",
            FILES_MAX,
            stream=stream,
        )
    assert os.listdir(tmp_path) == ["out"] and (tmp_path / "out").read_bytes() == b"untouched"


def test_sparse_file_in_an_archive_is_refused(
    tmp_path: Path,
) -> None:
    made, _ = member("big")
    made.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(1 << 50),
        "GNU.sparse.name": "big",
    }
    made.size = 512
    with pytest.raises(Refused):
        unpack(archive((made, b"1\n0\n0\n".ljust(512, b"\0"))), tmp_path / "job", FILES_MAX)
    assert os.listdir(tmp_path) == []


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    data = archive(*WHOLE).getvalue()
    with pytest.raises(Refused):
        unpack(io.BytesIO(data[:3_000]), tmp_path / "job", FILES_MAX)
    assert os.listdir(tmp_path) == []


DEEP = tuple("/".join("d" * (level + 1)) for level in range(1_500))


def test_folders_deeper_than_the_bound_are_refused(tmp_path: Path) -> None:
    allowed = DEEP[: unpacking.DEPTH_MAX]
    unpack(archive(*map(folder, allowed)), tmp_path / "job", len(DEEP))
    assert (tmp_path / "job" / allowed[-1]).is_dir()
    with pytest.raises(Refused, match="257 levels of folders, and 256 are allowed"):
        unpack(archive(*map(folder, DEEP)), tmp_path / "deep", len(DEEP))
    assert os.listdir(tmp_path) == ["job"]


def test_very_deep_folders_of_a_refused_archive_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "DEPTH_MAX", len(DEEP))
    with pytest.raises(Refused, match="invalid"):
        unpack(archive(*map(folder, DEEP), member("../x")), tmp_path / "job", 2 * len(DEEP))
    assert os.listdir(tmp_path) == []


def test_unpacking_of_a_stopped_job_ends_between_two_files(tmp_path: Path) -> None:
    answers = iter((True, True, False))
    with pytest.raises(Refused, match="stopped"):
        unpack(archive(*WHOLE), tmp_path / "job", FILES_MAX, go_on=lambda: next(answers))
    assert os.listdir(tmp_path) == []


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_is_either_harmless_or_refused(
    tmp_path: Path, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(archive(*WHOLE).getvalue())
    for place, value in damage:
        data[place] = value
    into = tmp_path / "job"
    try:
        unpack(io.BytesIO(bytes(data)), into, FILES_MAX)
    except Refused:
        assert not into.exists()
        return
    for path in into.rglob("*"):
        assert (str(path.resolve()) + "/").startswith(str(into) + "/")
    import shutil

    shutil.rmtree(into)
