"""Files of a release: archives without times and owners, licences, the audit's verdict."""

import io
import tarfile

from libs.release.audit import Verdict, verdict
from libs.release.building import dated, repacked
from libs.release.licences import Licensed, licensed, page, unknown

EPOCH = 1_700_000_000


def archive(names: list[str], mtime: int, mode: int, owner: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.mtime = mtime
            member.mode = mode
            member.uname = owner
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_archives_of_the_same_files_are_equal_whoever_packed_them() -> None:
    one = repacked(archive(["m/a", "m/b"], 5, 0o664, "anna"), EPOCH)
    other = repacked(archive(["m/b", "m/a"], 9, 0o640, "bert"), EPOCH)
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert [(each.name, each.mode, each.mtime, each.uname) for each in tar] == [
            ("m/a", 0o644, EPOCH, ""),
            ("m/b", 0o644, EPOCH, ""),
        ]


def test_archives_keep_content_and_what_is_executable() -> None:
    packed = repacked(archive(["m/run"], 5, 0o700, "anna"), EPOCH)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        (member,) = tar.getmembers()
        content = tar.extractfile(member)
        assert member.mode == 0o755 and content is not None and content.read() == b"m/run"


def test_a_release_needs_its_own_section_in_the_changelog() -> None:
    assert dated("# Changelog\n\n## 0.1.0 (2026-11-27)\n", "0.1.0")
    assert not dated("# Changelog\n\n## Unreleased\n", "0.1.0")
    assert not dated("## 0.1.01 (2026-11-27)\n", "0.1.0")


def test_a_licence_is_the_expression_else_the_classifiers_else_the_text() -> None:
    assert licensed("a", "1", "MIT", "long text", ["BSD License"]).licence == "MIT"
    assert licensed("a", "1", "", "long text", ["BSD License"]).licence == "BSD License"
    assert licensed("a", "1", "", "Apache 2.0\nmore", []).licence == "Apache 2.0"
    assert licensed("a", "1", "", "", []).licence == "not stated"


def test_packages_without_an_allowed_licence_are_found() -> None:
    good = Licensed("a", "1", "Apache-2.0 AND MIT")
    bad = [Licensed("b", "1", "GPL-3.0-only"), Licensed("c", "1", "not stated")]
    assert unknown([good, *bad]) == bad


def test_the_licence_page_names_dependencies_and_not_the_product() -> None:
    text = page([Licensed("muster-gpu", "0.1.0", "x"), Licensed("click", "8", "BSD")], "muster-gpu")
    assert "| click | 8 | BSD |" in text
    assert "muster-gpu" not in text


def test_a_package_that_the_audit_skipped_is_not_clean() -> None:
    answer = {
        "dependencies": [
            {"name": "click", "version": "8.1", "vulns": []},
            {"name": "aiohttp", "version": "3.1", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]},
            {"name": "yarl", "skip_reason": "not found"},
            {"name": "pip", "version": "1", "vulns": [{"id": "PYSEC-3"}]},
            {"name": "muster-gpu", "skip_reason": "not found"},
        ]
    }
    assert verdict(answer) == Verdict(["aiohttp 3.1: PYSEC-1, PYSEC-2"], ["yarl"])
