"""Generates the completion scripts of `muster`: verbs, options and choices.

The script contains all words, so a TAB does not start Python, which would take 0.1 s. After an
upgrade the script must be generated again. Tests: tests/unit/test_completion.py.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import click

SHELLS: Final = ("bash", "zsh", "fish")


class Word(NamedTuple):
    """A word that may be typed, and its help."""

    text: str
    help: str


class Place(NamedTuple):
    """A position in the command: the verbs typed so far (`""`, `"audit"`), the words that may
    follow, and the choices for the values of options.
    """

    path: str
    words: list[Word]
    choices: dict[str, list[str]]


def script(shell: str, root: click.Group) -> str:
    """Return the completion script that the shell reads when it starts."""
    places = list(_places(click.Context(root, info_name="muster"), root, ""))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](places)


def _places(context: click.Context, command: click.Command, path: str) -> Iterator[Place]:
    words: list[Word] = []
    choices: dict[str, list[str]] = {}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            words.append(Word(name, _line(below)))
            yield from _places(context, below, f"{path} {name}".strip())
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            words += [
                Word(flag, " ".join((option.help or "").split()))
                for flag in (*option.opts, *option.secondary_opts)
            ]
            if isinstance(option.type, click.Choice):
                choices |= {
                    flag: [str(choice) for choice in option.type.choices] for flag in option.opts
                }
    for argument in command.params:
        if isinstance(argument, click.Argument) and isinstance(argument.type, click.Choice):
            words += [Word(str(choice), "") for choice in argument.type.choices]
    yield Place(path, [*words, Word("--help", "Show this message and exit.")], choices)


def _line(command: click.Command) -> str:
    return command.get_short_help_str(200)


# Finds the verbs that were typed: the longest known path in the words before the cursor, without
# options.
_FIND: Final = """\
    local place="" word
    for word in "${before[@]}"; do
        case " ${place:+$place }$word" in
%s
        esac
    done
"""


def _find(places: list[Place]) -> str:
    known = [place.path for place in places if place.path]
    return _FIND % "\n".join(f'            " {path}") place="{path}" ;;' for path in known)


def _bash(places: list[Place]) -> str:
    cases = []
    for place in places:
        words = " ".join(word.text for word in place.words)
        for flag, choices in place.choices.items():
            cases.append(f'        "{place.path}:{flag}") words="{" ".join(choices)}" ;;')
        cases.append(f'        "{place.path}:"*) words="{words}" ;;')
    return (
        '# bash completion of muster: eval "$(muster completion bash)"\n_muster() {\n'
        '    local current="${COMP_WORDS[COMP_CWORD]}" '
        'previous="${COMP_WORDS[COMP_CWORD-1]}" words=""\n'
        '    local before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")\n'
        + _find(places)
        + '    case "$place:$previous" in\n'
        + "\n".join(cases)
        + (
            '\n    esac\n    COMPREPLY=($(compgen -W "$words" -- "$current"))\n}\ncomplete -o '
            "default -F _muster muster\n"
        )
    )


def _zsh(places: list[Place]) -> str:
    cases = []
    for place in places:
        for flag, choices in place.choices.items():
            cases.append(f'        "{place.path}:{flag}") described=({" ".join(choices)}) ;;')
        described = " ".join(_quoted(f"{word.text}:{word.help}") for word in place.words)
        cases.append(f'        "{place.path}:"*) described=({described}) ;;')
    return (
        '#compdef muster\n# zsh completion of muster: eval "$(muster completion '
        'zsh)"\n_muster() {\n'
        '    local previous="${words[CURRENT-1]}"\n    local -a before described\n    '
        'before=("${(@)words[2,CURRENT-1]}")\n'
        + _find(places)
        + '    case "$place:$previous" in\n'
        + "\n".join(cases)
        + "\n    esac\n    _describe 'muster' described || _files\n}\ncompdef _muster muster\n"
    )


def _fish(places: list[Place]) -> str:
    lines = ["# fish completion of muster: muster completion fish | source"]
    for place in places:
        verbs = place.path.split()
        condition = (
            " ; and ".join(f"__fish_seen_subcommand_from {verb}" for verb in verbs)
            or "__fish_use_subcommand"
        )
        for word in place.words:
            lines.append(
                f"complete -c muster -n {_quoted(condition)} {_fish_word(place, word)}-d "
                f"{_quoted(word.help)}"
            )
    return "\n".join(lines) + "\n"


def _fish_word(place: Place, word: Word) -> str:
    if not word.text.startswith("-"):
        return f"-f -a {word.text} "
    kind = "-l" if word.text.startswith("--") else "-s"
    choices = place.choices.get(word.text)
    values = f"-x -a {_quoted(' '.join(choices))} " if choices else ""
    return f"{kind} {word.text.lstrip('-')} {values}"


def _quoted(text: str) -> str:
    """Return `text` in single quotes, in the form that all three shells read."""
    return "'" + text.replace("'", "'\\''") + "'"
