"""docs/cli.md: every verb of the command, from the click commands themselves.

The page is built from the commands' parts, not from click's own rendering of them, which differs
between its versions.
"""

from collections.abc import Iterator

import click

from libs.cli.main import HELP, muster
from libs.cli.verb_group import VERBS
from libs.docs.markdown import block, code, page, table

PREFORMATTED = "\b"


def cli() -> str:
    sections = dict.fromkeys(verb.section for verb in VERBS.values())
    context = click.Context(muster, info_name="muster")
    blocks = []
    for section in sections:
        blocks.append(f"## {section}")
        for name in (name for name, verb in VERBS.items() if verb.section == section):
            command = muster.get_command(context, name)
            assert command is not None
            blocks += _command(f"muster {name}", command)
    return page("The command", _help(HELP), *blocks)


def _command(path: str, command: click.Command) -> Iterator[str]:
    """Return the section of one verb and of the verbs below it."""
    yield f"### {path}"
    yield block(" ".join([path, *_usage(command)]))
    yield _help(command.help or "")
    options = [
        param for param in command.params if isinstance(param, click.Option) and not param.hidden
    ]
    if options:
        yield table(
            ("option", "meaning"), [(code(_option(option)), _meaning(option)) for option in options]
        )
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _command(f"{path} {name}", below)


def _usage(command: click.Command) -> Iterator[str]:
    if any(isinstance(param, click.Option) for param in command.params):
        yield "[OPTIONS]"
    if isinstance(command, click.Group):
        yield "[VERB]" if command.invoke_without_command else "VERB"
    for param in command.params:
        if isinstance(param, click.Argument):
            yield param.metavar or _argument(param)


def _argument(param: click.Argument) -> str:
    word = (param.name or "").upper()
    if isinstance(param.type, click.Choice):
        word = "|".join(map(str, param.type.choices))
        word = f"{{{word}}}" if param.required else word
    shown = word if param.required else f"[{word}]"
    return shown if param.nargs == 1 else f"{shown}..."


def _option(option: click.Option) -> str:
    names = ", ".join(option.opts) + "".join(f" / {name}" for name in option.secondary_opts)
    return names if option.is_flag or option.count else f"{names} {_value(option)}"


def _value(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return f"[{'|'.join(map(str, option.type.choices))}]"
    return option.type.name.split()[0].upper()


def _meaning(option: click.Option) -> str:
    shown = option.show_default and not option.is_flag
    default = option.show_default if isinstance(option.show_default, str) else option.default
    return f"{option.help or ''} (default {default})" if shown else option.help or ""


def _help(text: str) -> str:
    """Return click's help text as Markdown: a paragraph behind its mark is kept as it is."""
    blocks = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.strip("\n").splitlines()
        kept = lines[0].strip() == PREFORMATTED
        blocks.append(
            block("\n".join(line.rstrip() for line in lines[1:]))
            if kept
            else " ".join(line.strip() for line in lines)
        )
    return "\n\n".join(blocks)
