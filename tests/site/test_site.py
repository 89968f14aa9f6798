"""The site: it builds without a warning, asks no other host, and shows every page of docs/."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from tests.tidy import ROOT

pytest.importorskip("mkdocs", reason="the site needs the extra `site` (make site installs it)")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]

# What a browser fetches by itself.
FETCHED: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # The theme announces its successor, which is no warning about a page.
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "WARNING" not in said, said
    return folder


class Fetched(HTMLParser):
    """What a page makes a browser fetch from another host."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(FETCHED.get(tag, ""), None) or ""
        if address.startswith(("http:", "https:", "//")):
            self.foreign.append(address)


def test_every_page_is_built_and_asks_no_other_host(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    missing = [str(page) for page in pages if not (site / page.with_suffix(".html")).exists()]
    assert missing == []
    for path in site.rglob("*.html"):
        found = Fetched()
        found.feed(path.read_text())
        assert found.foreign == [], path
    for path in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?https?:", path.read_text()) == [], path


def test_files_of_the_project_have_pages_too(site: Path) -> None:
    train = (site / "project" / "examples" / "train.py.html").read_text()
    assert "argparse" in train
    assert (site / "project" / "ARCHITECTURE.html").exists()


def test_diagrams_are_drawn_without_a_script(site: Path) -> None:
    page = (site / "job-life.html").read_text()
    assert page.count('<svg class="states"') == 2 and "stateDiagram" not in page


def test_the_search_finds_a_page(site: Path) -> None:
    assert "hardware watchdog" in (site / "search" / "search_index.json").read_text()
