"""Where every setting's value comes from: flag > environment > .env > /etc/muster/*.yaml > default.

`Settings` (settings.py) is the table; here its sources are read and laid over each other. All
faults are collected and said together, and a name that nobody knows is one of them, because a
mistyped key that is passed over in silence is found on the worst day. Two variables say where to
look: MUSTER_CONFIG_DIR (default /etc/muster) and MUSTER_ENV_FILE (default .env where the process
was started); an empty one means nowhere. Tests: tests/unit/test_configuration.py.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from libs.common.errors import Refused
from libs.common.settings.other_variables import ELSEWHERE
from libs.common.settings.settings import FILES, PREFIX, Settings, checked, file_of

CONFIG_DIR: Final = "MUSTER_CONFIG_DIR"
ENV_FILE: Final = "MUSTER_ENV_FILE"
DEFAULT_DIR: Final = "/etc/muster"
DEFAULT_ENV_FILE: Final = ".env"
FILE_BYTES_MAX: Final = 1 << 20
# A family of variables that are no settings: of this project's tests.
FOREIGN: Final = "MUSTER_TEST_"
DEFAULT: Final = "default"


class Configuration(NamedTuple):
    """`sources`: for each setting where its value stands.

    `problems`: one text for each fault; with any, `settings` is not to be used.
    """

    settings: Settings
    sources: dict[str, str]
    problems: tuple[str, ...]


class _Layer(NamedTuple):
    """What one source says, as it stands there, and what is wrong with it."""

    source: str
    values: dict[str, Any]
    problems: list[str]


def read(arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process. Raises Refused naming every fault of every source."""
    found = resolve(arguments, environ)
    if found.problems:
        raise Refused("; ".join(found.problems))
    return found.settings


def resolve(
    arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Configuration:
    """The settings, their sources, and what is wrong; it never raises."""
    values: dict[str, Any] = {}
    sources = {field.name: DEFAULT for field in msgspec.structs.fields(Settings)}
    problems: list[str] = []
    for layer in (*_files(environ), _env_file(environ), _environment(environ), _flags(arguments)):
        problems += layer.problems
        for name, raw in layer.values.items():
            value, fault = checked(name, raw)
            if fault:
                problems.append(f"{layer.source}: {fault}")
            else:
                values[name], sources[name] = value, layer.source
    return Configuration(Settings(**values), sources, tuple(problems))


def _known() -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(Settings))


def _hint(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1, 0.6)
    return f"did you mean {near[0]}?" if near else "docs/settings.md has all of them"


def _flags(arguments: Sequence[str]) -> _Layer:
    """`--log-level DEBUG` or `--log-level=DEBUG`."""
    layer = _Layer("flag", {}, [])
    known = ["--" + name.replace("_", "-") for name in _known()]
    rest = iter(arguments)
    for argument in rest:
        flag, has_value, text = argument.partition("=")
        value = text if has_value else next(rest, None)
        if flag not in known:
            layer.problems.append(f"flag: {flag[:64]} is not known: {_hint(flag, known)}")
        elif value is None:
            layer.problems.append(f"flag: {flag} needs a value")
        else:
            layer.values[flag[2:].replace("-", "_")] = value
    return layer


def _environment(environ: Mapping[str, str]) -> _Layer:
    return _of_variables("environment", environ)


def _of_variables(source: str, variables: Mapping[str, str]) -> _Layer:
    """The settings among variables; one that begins like ours and is not ours is a fault."""
    layer = _Layer(source, {}, [])
    known = {PREFIX + name.upper(): name for name in _known()}
    for variable, text in variables.items():
        if variable in known:
            layer.values[known[variable]] = text
        elif (
            variable.startswith(PREFIX)
            and variable not in ELSEWHERE
            and not variable.startswith(FOREIGN)
        ):
            layer.problems.append(
                f"{source}: {variable} is not known: {_hint(variable, (*known, *ELSEWHERE))}"
            )
    return layer


def _env_file(environ: Mapping[str, str]) -> _Layer:
    """Lines NAME=VALUE, quoted as a shell would; only ours are looked at.

    A client's address and key are never taken from here: a file in a directory that somebody else
    wrote must not send this user's key elsewhere.
    """
    named = environ.get(ENV_FILE)
    path = Path(DEFAULT_ENV_FILE if named is None else named)
    if named == "" or (named is None and not path.is_file()):
        return _Layer("", {}, [])
    source = str(path.absolute())
    text, fault = _text(path)
    if fault:
        return _Layer(source, {}, [fault])
    variables, problems = _assignments(text, source)
    layer = _of_variables(source, variables)
    return _Layer(source, layer.values, [*problems, *layer.problems])


def _assignments(text: str, source: str) -> tuple[dict[str, str], list[str]]:
    """Our variables of a .env file, and the lines that cannot be read."""
    variables: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = [word for word in shlex.split(line, comments=True) if word != "export"]
        except ValueError as error:
            problems.append(f"{source}: line {number}: {error}")
            continue
        if words and words[0].startswith(PREFIX):
            variable, _, value = words[0].partition("=")
            variables[variable] = value
            if len(words) > 1:
                problems.append(f"{source}: line {number}: put the value of {variable} in quotes")
    return variables, problems


def _files(environ: Mapping[str, str]) -> Iterator[_Layer]:
    """The YAML files; one that is not there says nothing, one with another name is a fault, for
    nobody would read it.
    """
    named = environ.get(CONFIG_DIR)
    if named == "":
        return
    folder = Path(DEFAULT_DIR if named is None else named)
    try:
        present = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError as error:
        if named is not None or not isinstance(error, FileNotFoundError):
            yield _Layer(
                str(folder), {}, [f"{CONFIG_DIR}={folder} cannot be read ({error.strerror})"]
            )
        return
    for path in present:
        if path.suffix != ".yaml" or path.stem not in FILES:
            names = [f"{stem}.yaml" for stem in FILES]
            yield _Layer(
                str(path), {}, [f"{path} is read by nobody: the files are {', '.join(names)}"]
            )
        else:
            yield _yaml(path)


def _yaml(path: Path) -> _Layer:
    import yaml  # only where there is a file: it costs a third of a command's start

    layer = _Layer(str(path), {}, [])
    text, fault = _text(path)
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        values, fault = None, f"{path} is no YAML: {' '.join(str(error).split())}"
    if not fault and not isinstance(values, dict | None):
        fault = f"{path}: write one `key: value` a line"
    if fault:
        layer.problems.append(fault)
    else:
        _sort(layer, path.stem, values or {})
    return layer


def _sort(layer: _Layer, stem: str, values: Mapping[Any, Any]) -> None:
    known = _known()
    for key, value in values.items():
        name = str(key)
        if name not in known:
            layer.problems.append(f"{layer.source}: {name[:64]} is not known: {_hint(name, known)}")
        elif file_of(name) != stem:
            layer.problems.append(f"{layer.source}: {name} belongs in {file_of(name)}.yaml")
        else:
            layer.values[name] = value


def _text(path: Path) -> tuple[str, str]:
    """The file's text, or what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return "", f"{path} is over {FILE_BYTES_MAX} bytes: is it the right file?"
        return data.decode(), ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path} cannot be read: {error}"
