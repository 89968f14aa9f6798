"""The completion scripts hold every verb and option, and bash, which is everywhere, completes with
its own.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from libs.cli.main import muster
from libs.cli.terminal.completion_script import SHELLS, script
from libs.cli.verb_group import VERBS
from libs.cli.verbs import completion


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_is_in_every_script(shell: str) -> None:
    text = script(shell, muster)
    assert [verb for verb in VERBS if verb not in text] == []
    assert "verify" in text and ("--priority" in text or "-l priority" in text)


def test_the_verb_offers_the_supported_shells() -> None:
    assert completion.SHELLS == SHELLS


def completed(folder: Path, words: Sequence[str]) -> list[str]:
    source = folder / "muster.bash"
    source.write_text(script("bash", muster))
    call = (
        f'source {source}; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _muster; printf "%s\\n" '
        f'"${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", call, "bash", *words], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["muster", "vers"], ["version"]),
        (["muster", "config", "s"], ["show"]),
        (["muster", "ps", "-o", "j"], ["json"]),
        (["muster", "audit", "verify", "--hel"], ["--help"]),
        (["muster", "completion", "f"], ["fish"]),
        (["muster", "xyzzy-"], []),
    ],
)
def test_bash_completes_partial_words(
    tmp_path: Path, words: list[str], expected: list[str]
) -> None:
    assert completed(tmp_path, words) == expected


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_installed_shells_accept_their_script(tmp_path: Path, shell: str) -> None:
    path = tmp_path / f"muster.{shell}"
    path.write_text(script(shell, muster))
    assert subprocess.run([shell, "-n", str(path)], capture_output=True, timeout=20).stderr == b""
