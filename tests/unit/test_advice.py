"""Every flag and every verb that a text of Muster advises exists: all strings of the code are read,
not a list of them.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import click
import pytest

from libs.cli.main import muster
from libs.cli.verb_group import VERBS

ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = ("libs", "services")
FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# A verb, and what follows up to the end of the command.
COMMAND: Final = re.compile(r"\bmuster ([a-z][a-z-]*(?: [a-z][a-z-]*)?)([^()`,;\n]*)")
# Flags of systemctl, curl, nvidia-smi and py-spy, and of the program of a pull.
OF_OTHER_PROGRAMS: Final = (
    *("--now", "--proxy-user", "--gpu-reset", "--held", "--from-peer"),
    *("--pid", "--nonblocking"),
)
# Files whose flags are of other programs, or of modules with a command line of their own.
OTHERS: Final = (
    "libs/cli/formats/sbatch*.py",
    "libs/cli/formats/kubernetes*.py",
    "libs/cli/slurm/*.py",
    "libs/cli/terminal/completion_script.py",
    "libs/compose/*.py",
    "libs/deploy/*.py",
    "libs/docs/*.py",
    "libs/embedded/*.py",
    "libs/monitoring/*/*.py",
    "libs/release/*.py",
    "services/audit/commands.py",
    "services/node_agent/resident/standby*.py",
    "services/scheduler/simulate/*.py",
)


@cache
def texts(path: Path) -> tuple[str, ...]:
    """The strings of a file that are no docstrings; what is put into an f-string is an X."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    skipped = {id(part) for node in joined for part in ast.walk(node)}
    skipped |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    alone = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in skipped
    ]
    return (*map(_with_x, joined), *alone)


def _with_x(joined: ast.JoinedStr) -> str:
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "X" for part in joined.values
    )


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Each verb by its words, with its flags."""
    flags = {
        flag
        for option in command.params
        for flag in (*option.opts, *option.secondary_opts)
        if flag.startswith("--")
    }
    yield path, flags | {"--help"}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


FLAGS_OF: Final = dict(commands(muster))
KNOWN: Final = set().union(*FLAGS_OF.values())
FILES: Final = [
    path
    for folder in CODE
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(path.match(pattern) for pattern in OTHERS)
]


def wrong_flags(text: str) -> list[str]:
    """The flags of a text that no verb has, and those of a command that its verb does not have."""
    found = [flag for flag in FLAG.findall(text) if flag not in (*KNOWN, *OF_OTHER_PROGRAMS)]
    for words, rest in COMMAND.findall(text):
        verb = next(
            (
                tuple(words.split()[:many])
                for many in (2, 1)
                if tuple(words.split()[:many]) in FLAGS_OF
            ),
            None,
        )
        found += (
            [
                f"muster {' '.join(verb)} {flag}"
                for flag in FLAG.findall(rest.split(" -- ")[0])
                if flag not in FLAGS_OF[verb]
            ]
            if verb
            else []
        )
    return found


def test_every_flag_that_a_text_names_exists() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {flag}"
        for path in FILES
        for text in texts(path)
        for flag in wrong_flags(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ask for a vendor (--gpu-vendor nvidia)", ["--gpu-vendor"]),
        ("ask for a vendor (--vendor nvidia)", []),
        ("muster update X --time 2h", []),
        ("muster update X --vendor amd", ["muster update --vendor"]),
        ("reset it: muster gpu reset --gpu-id X", []),
        ("muster gpu reset --vendor X", ["muster gpu reset --vendor"]),
    ],
)
def test_the_reader_of_texts_finds_what_is_wrong(text: str, wrong: list[str]) -> None:
    assert wrong_flags(text) == wrong


def test_every_command_in_backquotes_is_a_verb() -> None:
    found = {
        f"{path.relative_to(ROOT)}: muster {verb}"
        for path in FILES
        for text in texts(path)
        for verb in re.findall(r"`muster ([a-z-]+)", text)
        if verb not in VERBS
    }
    assert found == set()
