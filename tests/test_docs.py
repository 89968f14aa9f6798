"""The pages of docs/: the generated ones are what the code gives now, and no link in any page is
dead.
"""

import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

from libs.cli.verb_group import VERBS
from libs.common import subjects
from libs.common.settings.help_texts import HELP
from libs.common.settings.settings import Settings
from libs.docs.pages import PAGES
from libs.docs.subjects_page import BESIDE, BUCKETS, STREAM_SUBJECTS, STREAMS
from tests.tidy import ROOT, texts

LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
FENCED: Final = re.compile(r"```.*?```", re.DOTALL)
HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)
# In a page, a path of the project in backticks; capitals stand for a name of the reader's own.
PATH: Final = re.compile(r"`((?:libs|services|tests|docs|bench)/[a-z0-9_*./-]+)`")
# A row of the table of a job's life: a file and a function of it.
HOP: Final = re.compile(r"\| `([a-z0-9_/]+\.py)` \| `(\w+)` \|$", re.MULTILINE)
# In the code, a page or a test.
NAMED: Final = re.compile(r"\b(?:docs/[\w/-]+\.md|tests/[\w/]+\.py)")
# Constants of subjects.py that are of the log itself, not beside it.
OF_THE_LOG: Final = (
    "STREAM",
    "PREFIX",
    "ALL_FACTS",
    "QUOTA",
    "SCHEDULER",
    "GATEWAY_KIND",
    "QUOTA_KIND",
    "SCHEDULER_KIND",
    "NODE_KIND",
)


# Something that looks like the id of a job, and what such an id is (`new_job_id`).
LIKE_AN_ID: Final = re.compile(r"\bj(?=[a-z0-9]*[0-9])[a-z0-9]{7,}\b")
ID: Final = re.compile(r"j[a-z2-7]{10}")


def pages() -> dict[str, str]:
    return {path: text for path, text in texts() if path.endswith(".md")}


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_gives_now(name: str) -> None:
    path = ROOT / "docs" / name
    assert path.exists() and path.read_text() == PAGES[name](), "`make docs` writes it"


def test_ids_of_jobs_in_examples_are_possible() -> None:
    """Readers compare them with their own, and programs are written after them."""
    read = ("docs/", "libs/", "services/", "README.md")
    impossible = [
        (path, found)
        for path, text in texts()
        for found in LIKE_AN_ID.findall(text)
        if path.startswith(read) and not ID.fullmatch(found)
    ]
    assert impossible == []


def test_no_link_between_pages_is_dead() -> None:
    links = [
        (page, link)
        for page, text in pages().items()
        for link in LINK.findall(FENCED.sub("", text))
    ]
    assert [
        (page, link) for page, link in links if "://" not in link and not _exists(page, link)
    ] == []


def _exists(page: str, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (ROOT / page).parent / name if name else ROOT / page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> list[str]:
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_a_page_or_a_test_that_the_code_names_exists() -> None:
    sources = [(path, text) for path, text in texts() if path.startswith(("libs/", "services/"))]
    named = [(path, name) for path, text in sources for name in NAMED.findall(text)]
    assert [(path, name) for path, name in named if not (ROOT / name).exists()] == []


def test_a_file_that_a_page_names_exists() -> None:
    named = [(page, path) for page, text in pages().items() for path in PATH.findall(text)]
    assert [(page, path) for page, path in named if not list(ROOT.glob(path.rstrip("/")))] == []


def test_each_hop_of_a_job_s_life_names_a_function_that_exists() -> None:
    hops = HOP.findall((ROOT / "ARCHITECTURE.md").read_text())
    assert len(hops) > 20
    assert [
        (path, name)
        for path, name in hops
        if not re.search(rf"\b(?:def|class) {name}\b", (ROOT / path).read_text())
    ] == []


def test_every_setting_has_exactly_one_help_text() -> None:
    assert list(HELP) == [field.name for field in msgspec.structs.fields(Settings)]


def test_every_subject_and_bucket_beside_the_log_is_on_the_page() -> None:
    constants = [
        name for name, value in vars(subjects).items() if name.isupper() and isinstance(value, str)
    ]
    assert sorted(constants) == sorted((*OF_THE_LOG, *BESIDE, *BUCKETS, *STREAMS, *STREAM_SUBJECTS))


def test_every_verb_is_on_the_page() -> None:
    page = PAGES["cli.md"]()
    assert [verb for verb in VERBS if f"\n### muster {verb}\n" not in page] == []
