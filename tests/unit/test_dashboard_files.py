"""The dashboard's files: they are what the vendors published, they need no other origin, and the
browser gets what keeps scripts of others out.
"""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from services.api_gateway.dashboard.files import ASK_AGAIN, FOR_EVER, STATIC, Files
from services.api_gateway.dashboard.routes import PAGES

VENDOR = STATIC / "vendor"
# Used by the tests in a browser: axe-core, 4.14.1, MPL-2.0.
TOOLS = Path(__file__).parents[1] / "browser" / "vendor"
FILE_LINES_MAX = 400
OTHER_ORIGIN = re.compile(r"(?:https?:)?//[\w-]+\.[\w.-]+", re.ASCII)
# Names of XML namespaces, which no browser loads.
NAMESPACES = ("http://www.w3.org",)
UNSAFE = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")


def own_files(*kinds: str) -> list[Path]:
    return [
        path for path in STATIC.rglob("*") if path.suffix in kinds and VENDOR not in path.parents
    ]


@pytest.mark.parametrize("folder", [VENDOR, TOOLS], ids=["pages", "tests"])
def test_vendored_files_are_those_of_the_list_of_hashes(folder: Path) -> None:
    listed = dict(
        reversed(line.split("  ", 1)) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    found = {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("SHA256SUMS", "README.md")
    }
    assert found == listed


def test_every_vendored_package_has_its_licence_and_a_row() -> None:
    page = (VENDOR / "README.md").read_text()
    for path in VENDOR.glob("*.*s"):
        assert f"`{path.name}`" in page, path
    assert len(list((VENDOR / "licences").iterdir())) == page.count("| MIT |") + page.count(
        "| Apache-2.0 |"
    )


def test_pages_name_no_other_origin() -> None:
    for path in own_files(".js", ".css", ".html", ".svg"):
        found = [
            each.group()
            for each in OTHER_ORIGIN.finditer(path.read_text())
            if not each.group().startswith(NAMESPACES)
        ]
        assert found == [], path


def test_pages_build_no_html_from_text_and_run_no_text() -> None:
    for path in own_files(".js"):
        text = path.read_text()
        assert [word for word in UNSAFE if word in text] == [], path


def test_files_are_small() -> None:
    for path in own_files(".js", ".css", ".html"):
        assert path.read_text().count("\n") <= FILE_LINES_MAX, path


def test_every_import_of_a_page_exists() -> None:
    for path in own_files(".js"):
        for name in re.findall(r"(?:from|import\()\s*'(\.[^']+)'", path.read_text()):
            assert (path.parent / name).resolve().is_file(), (path, name)


def test_the_policy_allows_scripts_of_the_own_origin_alone() -> None:
    policy = dict(
        part.strip().split(" ", 1) if " " in part.strip() else (part.strip(), "")
        for part in Files().policy.split(";")
    )
    assert policy["default-src"] == "'none'"
    assert re.fullmatch(r"'self' 'sha256-[\w+/=]+'", policy["script-src"], re.ASCII)
    assert policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in Files().policy


def test_files_are_kept_for_ever_under_the_digest_of_all_files_only() -> None:
    files = Files()
    assert files.cache_control(files.digest) == FOR_EVER
    assert files.cache_control("of-another-version") == ASK_AGAIN
    assert files.digest.encode() in files.page.data
    assert b"DIGEST" not in files.page.data


def test_the_pages_of_the_server_are_those_of_the_router() -> None:
    router = (STATIC / "data" / "router.js").read_text()
    patterns = [each.replace("\\/", "/") for each in re.findall(r"/\^(\S+?)\$/\]", router)]
    assert sorted(re.sub(r"\{\w+\}", "([^/]+)", page) for page in PAGES) == sorted(patterns)
