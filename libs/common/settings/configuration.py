"""The sources of settings: flag > environment > .env > /etc/muster/*.yaml > default.

`Settings` (settings.py) lists the settings; this module reads the sources and merges them. It
reports all faults together. An unknown name is a fault, because a mistyped key would otherwise stay
unnoticed until the day that it matters. Two variables name the places: MUSTER_CONFIG_DIR (default
/etc/muster) and MUSTER_ENV_FILE (default .env in the working directory). An empty value disables
that source. Tests: tests/unit/test_configuration.py.
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
# Prefix of the variables that only the project's tests read.
FOREIGN: Final = "MUSTER_TEST_"
DEFAULT: Final = "default"


class Configuration(NamedTuple):
    """The result of reading all sources.

    `sources` names the source of each setting's value. `problems` has one text per fault; if there
    is any, do not use `settings`.
    """

    settings: Settings
    sources: dict[str, str]
    problems: tuple[str, ...]


class _Layer(NamedTuple):
    """The raw values of one source, and its faults."""

    source: str
    values: dict[str, Any]
    problems: list[str]


def read(arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of this process.

    Raises Refused with every fault of every source.
    """
    configuration = resolve(arguments, environ)
    if configuration.problems:
        raise Refused("; ".join(configuration.problems))
    return configuration.settings


def resolve(
    arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Configuration:
    """Return the settings, their sources and all faults. Never raises."""
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
    return f"did you mean {near[0]}?" if near else "docs/settings.md lists all names"


def _flags(arguments: Sequence[str]) -> _Layer:
    """Read flags in the forms `--log-level DEBUG` and `--log-level=DEBUG`."""
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
    return _from_variables("environment", environ)


def _from_variables(source: str, variables: Mapping[str, str]) -> _Layer:
    """Pick the settings among the variables. An unknown variable with our prefix is a fault."""
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
    """Read MUSTER_* variables from lines NAME=VALUE of the .env file, quoted as in a shell.

    A command's gateway address and API key are never read from it: a file that another user wrote
    must not send this user's key elsewhere.
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
    layer = _from_variables(source, variables)
    return _Layer(source, layer.values, [*problems, *layer.problems])


def _assignments(text: str, source: str) -> tuple[dict[str, str], list[str]]:
    """Return the MUSTER_* variables of a .env file, and the faults of its lines."""
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
    """Read the YAML files. A missing file is no fault, an unknown name is one."""
    named = environ.get(CONFIG_DIR)
    if named == "":
        return
    folder = Path(DEFAULT_DIR if named is None else named)
    try:
        present = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError as error:
        if named is not None or not isinstance(error, FileNotFoundError):
            yield _Layer(
                str(folder), {}, [f"{CONFIG_DIR}={folder} cannot be read: {error.strerror}"]
            )
        return
    for path in present:
        if path.suffix != ".yaml" or path.stem not in FILES:
            names = [f"{stem}.yaml" for stem in FILES]
            yield _Layer(
                str(path), {}, [f"{path} is not a configuration file: use {', '.join(names)}"]
            )
        else:
            yield _yaml(path)


def _yaml(path: Path) -> _Layer:
    import yaml  # imported only if there is a file: the import takes a third of a command's start

    layer = _Layer(str(path), {}, [])
    text, fault = _text(path)
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        values, fault = None, f"{path} is not valid YAML: {' '.join(str(error).split())}"
    if not fault and not isinstance(values, dict | None):
        fault = f"{path}: write one `key: value` per line"
    if fault:
        layer.problems.append(fault)
    else:
        _add_known(layer, path.stem, values or {})
    return layer


def _add_known(layer: _Layer, stem: str, values: Mapping[Any, Any]) -> None:
    """Add the settings of this file to the layer; unknown and misplaced keys are faults."""
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
    """Return the text of a file and an empty fault, or an empty text and the fault."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return "", f"{path} is larger than {FILE_BYTES_MAX} bytes: check that it is a text file"
        return data.decode(), ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path} cannot be read: {error}"
