"""Commands in the pages: `muster` takes every flag, and those that are to run are complete."""

import re
import subprocess
from typing import Final

import pytest

from tests.commands import RUN_BY, Block, blocks, muster_lines, refusal, unmarked_words
from tests.tidy import ROOT

# Every block of these runs in a test: here, or in the test that its mark names.
RUN: Final = ("tutorial.md", "deployment_guide.md")
WRONG: Final = re.compile(
    r"there is no verb|[Nn]o such option|unexpected extra argument|Invalid value(?!.*exist)"
)
# In these, a word of a command stands for something else.
SHOWN: Final = ("...", "…", "MIN..MAX")


def pages() -> list[str]:
    found = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    return sorted(
        name for name in [*found, "README.md"] if "decisions/" not in name and name != "docs/cli.md"
    )


def page(name: str) -> list[Block]:
    return blocks((ROOT / name).read_text())


@pytest.mark.parametrize("name", pages())
def test_a_command_of_a_page_is_one_of_muster(name: str) -> None:
    lines = [
        words
        for block in page(name)
        if block.language in ("", "sh", "console", "bash")
        for words in muster_lines(block.script)
        if not any(shown in words for shown in SHOWN)
    ]
    refused = [f"muster {' '.join(words)}: {refusal(words)}" for words in lines]
    assert [line for line in refused if WRONG.search(line)] == []


@pytest.mark.parametrize("name", pages())
def test_words_that_explain_a_command_are_a_comment(name: str) -> None:
    shell = [block for block in page(name) if block.language in ("", "sh", "console", "bash")]
    assert [line for block in shell for line in unmarked_words(block.script)] == []


@pytest.mark.parametrize("name", RUN)
def test_every_command_of_the_page_runs_in_a_test(name: str) -> None:
    found = page(f"docs/{name}")
    unmarked = [block.text for block in found if "$ " in block.text and not block.mark]
    assert found and unmarked == []
    for block in found:
        if block.mark.startswith(RUN_BY):
            assert (ROOT / block.mark.removeprefix(RUN_BY)).exists()


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_the_page_are_a_script(name: str) -> None:
    script = "".join(block.script for block in page(f"docs/{name}") if block.runs)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_words_after_a_command_without_a_comment_sign_are_refused() -> None:
    lines = "muster drain node-3   no new work there\nmuster drain node-4   # as before\n"
    assert unmarked_words(lines) == ["muster drain node-3   no new work there"]
    (words,) = muster_lines("muster whoami who you are\n")
    assert WRONG.search(refusal(words))
    assert muster_lines("muster secret set token < token.txt\n") == [["secret", "set", "token"]]


def test_commands_are_told_from_what_they_print() -> None:
    text = "<!-- run: prints b c -->\n```console\n$ a <<'END'\nx\nEND\n$ b \\\n    c\noutput\n```\n"
    (block,) = blocks(text)
    assert (block.script, block.expected) == ("a <<'END'\nx\nEND\nb \\\n    c\n", "b c")
