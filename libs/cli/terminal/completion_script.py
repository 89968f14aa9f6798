"""Generates the completion scripts of `muster`: verbs, options, choices, and names.

The script contains all words, so a TAB does not start Python, which would take 0.1 s. Only for the
names of jobs, nodes and models it calls `muster completion --names` (completion_names.py). After an
upgrade the script must be generated again. Tests: tests/unit/test_completion.py and
tests/integration/test_cli_completion.py.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import click

SHELLS: Final = ("bash", "zsh", "fish")
# The kind of names by the word in the help of an argument or an option.
KINDS: Final = {"JOB": "jobs", "NODE": "nodes", "NODES": "nodes", "MODEL": "models"}
_WORD: Final = re.compile(r"[A-Z]+")
# Verbs whose argument NAME is a model that exists.
OF_MODELS: Final = ("models", "scale", "redeploy", "undeploy", "adapter", "model")
NOT_OF_MODELS: Final = ("model pull", "model unpull", "model pulled")
MODEL_ARGUMENTS: Final = ("name", "names", "model")
NODE_OPTIONS: Final = ("--nodelist",)


class Word(NamedTuple):
    """A word that may be typed, and its help."""

    text: str
    help: str


class Place(NamedTuple):
    """A position in the command: the verbs typed so far (`""`, `"audit"`), the words that may
    follow, and the choices for the values of options.

    `names` are the kinds of names that may follow (`jobs`, `nodes,jobs`), `named` those for the
    values of options.
    """

    path: str
    words: list[Word]
    choices: dict[str, list[str]]
    names: str
    named: dict[str, str]


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
    words.append(Word("--help", "Show this message and exit."))
    yield Place(path, words, choices, names=_names(command, path), named=_named(command))


def _names(command: click.Command, path: str) -> str:
    """Return the kinds of names that the arguments of a verb take."""
    kinds: list[str] = []
    for argument in command.params:
        if isinstance(argument, click.Argument):
            kinds += _kinds(argument.metavar or "")
            of_models = path.split(" ")[0] in OF_MODELS and path not in NOT_OF_MODELS
            if of_models and argument.name in MODEL_ARGUMENTS:
                kinds.append("models")
    return ",".join(dict.fromkeys(kinds))


def _named(command: click.Command) -> dict[str, str]:
    """Return the kind of names that the values of options take, by flag."""
    return {
        flag: kind
        for option in command.params
        if isinstance(option, click.Option)
        for flag in option.opts
        if (kind := "nodes" if flag in NODE_OPTIONS else KINDS.get(option.metavar or "", ""))
    }


def _kinds(metavar: str) -> list[str]:
    return [KINDS[word] for word in _WORD.findall(metavar) if word in KINDS]


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
        for flag, kind in place.named.items():
            cases.append(f'        "{place.path}:{flag}") words="$(_muster_names {kind})" ;;')
        asked = f'; [[ "$current" == -* ]] || words+=" $(_muster_names {place.names})"'
        cases.append(f'        "{place.path}:"*) words="{words}"{asked if place.names else ""} ;;')
    return (
        '# bash completion of muster: eval "$(muster completion bash)"\n'
        '_muster_names() {\n    command muster completion --names "$1" 2>/dev/null\n}\n'
        "_muster() {\n"
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
        for flag, kind in place.named.items():
            cases.append(f'        "{place.path}:{flag}") names=({_zsh_names(kind)}) ;;')
        described = " ".join(_quoted(f"{word.text}:{word.help}") for word in place.words)
        asked = f" names=({_zsh_names(place.names)})" if place.names else ""
        cases.append(f'        "{place.path}:"*) described=({described}){asked} ;;')
    return (
        '#compdef muster\n# zsh completion of muster: eval "$(muster completion '
        'zsh)"\n_muster() {\n'
        '    local previous="${words[CURRENT-1]}"\n    local -a before described names\n    '
        'before=("${(@)words[2,CURRENT-1]}")\n'
        + _find(places)
        + '    case "$place:$previous" in\n'
        + "\n".join(cases)
        + "\n    esac\n    (( $#names )) && compadd -a names\n"
        + "    _describe 'muster' described || (( $#names )) || _files\n}\ncompdef _muster muster\n"
    )


def _zsh_names(kinds: str) -> str:
    """Return the words of a zsh array with the names of these kinds, one for each line."""
    return f'${{(f)"$(command muster completion --names {kinds} 2>/dev/null)"}}'


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
        if place.names:
            lines.append(
                f"complete -c muster -n {_quoted(condition)} -f -a "
                f"{_quoted(_fish_names(place.names))}"
            )
    return "\n".join(lines) + "\n"


def _fish_word(place: Place, word: Word) -> str:
    if not word.text.startswith("-"):
        return f"-f -a {word.text} "
    kind = "-l" if word.text.startswith("--") else "-s"
    choices = place.choices.get(word.text)
    names = place.named.get(word.text)
    offered = " ".join(choices) if choices else _fish_names(names) if names else ""
    values = f"-x -a {_quoted(offered)} " if offered else ""
    return f"{kind} {word.text.lstrip('-')} {values}"


def _fish_names(kinds: str) -> str:
    return f"(command muster completion --names {kinds} 2>/dev/null)"


def _quoted(text: str) -> str:
    """Return `text` in single quotes, in the form that all three shells read."""
    return "'" + text.replace("'", "'\\''") + "'"
