"""Reading commands in pages and scripts: which blocks run, and whether `muster` takes their flags.

A fenced block of a page runs in a test if the comment before it says so:

    <!-- run -->                      in order with the page's other blocks, in one shell
    <!-- run: prints TEXT -->         and its output must contain TEXT
    <!-- run by: tests/FILE.py -->    the commands run in that test instead

In a block with lines after `$ `, these are commands and the others what they print.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import click

from libs.cli.main import muster

BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<mark>run[^>]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PROMPT: Final = "$ "
PRINTS: Final = "run: prints "
RUN_BY: Final = "run by: "
# What may stand before the word `muster`: settings of variables, substitutions, shell words.
BEFORE: Final = re.compile(r"^(?:[A-Za-z_]\w*=(?:'[^']*'|\"[^\"]*\"|\S)*\s+)*$")
# A variable of the shell, for which a number stands in a check.
# Words that explain a command stand in a column of their own, after `#`.
COLUMN: Final = re.compile(r"\S {2,}(?![#\s\\|&<>])")
VARIABLE: Final = re.compile(r"\$\(\(.*?\)\)|\$\{[^}]*\}|\$\w+")
WORDS: Final = ("if", "then", "do", "else", "!", "(", "{")


class Block(NamedTuple):
    """A fenced block: its language, its mark without the comment, and its text."""

    language: str
    mark: str
    text: str

    @property
    def runs(self) -> bool:
        return self.mark == "run" or self.mark.startswith(PRINTS)

    @property
    def expected(self) -> str:
        return self.mark.removeprefix(PRINTS) if self.mark.startswith(PRINTS) else ""

    @property
    def script(self) -> str:
        """The commands, without prompts and without what they print."""
        if not any(line.startswith(PROMPT) for line in self.text.splitlines()):
            return self.text
        return "".join(_commands(self.text.splitlines(keepends=True)))


def blocks(page: str) -> list[Block]:
    return [
        Block(found["language"], found["mark"] or "", found["text"])
        for found in BLOCK.finditer(page)
    ]


def _commands(lines: Sequence[str]) -> Iterator[str]:
    """The lines after a prompt, and those that continue one: after a backslash, in a document."""
    continues, until = False, ""
    for line in lines:
        if until:
            yield line
            until = "" if line.strip() == until else until
        elif continues or line.startswith(PROMPT):
            command = line.removeprefix(PROMPT) if not continues else line.removeprefix("> ")
            yield command
            continues = command.rstrip("\n").endswith("\\")
            document = re.search(r"<<'?(\w+)'?", command)
            until = document[1] if document else ""


def muster_lines(script: str) -> list[list[str]]:
    """The words after `muster` of each of its commands in a shell script."""
    joined = re.sub(r"\\\n\s*", " ", _without_documents(script))
    found = []
    for line in joined.splitlines():
        for part in re.split(r"&&|\|\||(?<![\w'\"])\||;|\$\(|`", _without_comment(line)):
            words = part.strip()
            while words.split(" ")[0] in WORDS:
                words = words.partition(" ")[2].strip()
            before, here, after = words.partition("muster ")
            if here and BEFORE.match(before):
                found.append(_split(after))
    return found


def unmarked_words(script: str) -> list[str]:
    """Return the `muster` lines of a shell script that are explained without `#`."""
    return [
        line
        for line in _without_documents(script).splitlines()
        if line.lstrip().startswith("muster ") and COLUMN.search(_without_comment(line).strip())
    ]


def _split(text: str) -> list[str]:
    """Words of a command, up to a redirection or the end of a substitution."""
    whole = VARIABLE.sub("1", text)
    cut = re.split(r"\)\s*$|\)\"| \d?[<>]|\s&$", whole)[0]
    try:
        return shlex.split(cut)
    except ValueError:
        return cut.replace('"', "").replace("'", "").split()


def _without_comment(line: str) -> str:
    return "" if line.lstrip().startswith("#") else re.sub(r"\s#\s.*$", "", line)


def _without_documents(script: str) -> str:
    return re.sub(r"<<'?(\w+)'?[^\n]*\n.*?^\1$", "", script, flags=re.DOTALL | re.MULTILINE)


def refusal(words: list[str]) -> str:
    """Return why the command line is no call of `muster`; empty if it is one."""
    command: click.Command = muster
    context = click.Context(muster, info_name="muster")
    rest = list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0) if rest else ""
        if name in ("--version", "--help", "-h", ""):
            return ""
        found = command.get_command(context, name)
        if found is None:
            return f"there is no verb {name}"
        command, context = found, click.Context(found, info_name=name, parent=context)
    try:
        command.make_context(command.name, rest, parent=context, resilient_parsing=False)
    except click.exceptions.Exit:
        return ""
    except click.UsageError as error:
        return error.format_message()
    return ""
