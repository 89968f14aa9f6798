"""A function, its arguments and the program that calls it, as files of an upload.

Pure, except that it reads the sources that it sends. cloudpickle travels along, so the node needs
nothing but Python.
"""

import json
import pickle  # nosec B403  only its errors
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from libs.client.errors import InvalidRequest
from libs.client.function import runner

PICKLE_BYTES_MAX: Final = 64 << 20
CALLS_MAX: Final = 100_000
# Runs the interpreter of the wanted version where the node has it, else its python3.
FIND_PYTHON: Final = (
    'exec "$(command -v python{version} || command -v python3 || echo python3)" -u {program}'
)
# The places of modules that a node has too, or that a requirement of the job installs.
INSTALLED: Final = ("stdlib", "platstdlib", "purelib", "platlib")
PROGRAM: Final = f"{runner.FOLDER}/run.py"
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

_registering: Final = threading.Lock()

# Positional arguments and named ones.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def command(python: str | None) -> list[str]:
    """Return the command of the job. `python` is the interpreter on the node."""
    if python:
        return [python, "-u", PROGRAM]
    return ["sh", "-c", FIND_PYTHON.format(version=VERSION, program=PROGRAM)]


def files_of(function: Callable[..., object], calls: Sequence[Arguments]) -> dict[str, bytes]:
    """Return the files of the upload by name; a name that ends in / is a folder.

    Raises InvalidRequest if the function or its arguments cannot be pickled.
    """
    cloudpickle = _cloudpickle()
    if not 0 < len(calls) <= CALLS_MAX:
        raise InvalidRequest(f"items: {len(calls)} calls: give 1 to {CALLS_MAX}")
    try:
        with _by_value(cloudpickle, function):
            pickled = cloudpickle.dumps((function, list(calls)))
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidRequest(
            f"function: it or its arguments cannot be pickled: {error}; open files, connections "
            "and locks inside the function",
            field="function",
        ) from error
    if len(pickled) > PICKLE_BYTES_MAX:
        raise InvalidRequest(
            f"function: it has {len(pickled)} bytes with its arguments, and at most "
            f"{PICKLE_BYTES_MAX} travel: let it read its data on the node",
            field="function",
        )
    folder = runner.FOLDER
    library = Path(cloudpickle.__file__).parent
    return {
        f"{folder}/": b"",
        f"{folder}/{runner.CALL}": json.dumps({"python": VERSION}).encode(),
        f"{folder}/{runner.FUNCTION}": pickled,
        PROGRAM: Path(runner.__file__).read_bytes(),
        f"{folder}/{runner.LIBRARIES}/": b"",
        f"{folder}/{runner.LIBRARIES}/cloudpickle/": b"",
        **{
            f"{folder}/{runner.LIBRARIES}/cloudpickle/{path.name}": path.read_bytes()
            for path in sorted(library.glob("*.py"))
        },
    }


def job_fields(function: Callable[..., object], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the job, with a name from the function's if none is given.

    The entry point of an image must not run instead of Python.
    """
    name = "".join(c for c in getattr(function, "__name__", "") if c.isalnum() or c in "._-")
    found = {"name": name.lstrip("._-")[:128] or None, **fields}
    if found.get("image"):
        found["container"] = {"entrypoint": [], **(found.get("container") or {})}
    return found


@contextmanager
def _by_value(cloudpickle: Any, function: Callable[..., object]) -> Iterator[None]:  # noqa: ANN401  a module
    """Pickle the module of the function with it, unless it is an installed one.

    So the node needs neither the module nor what the module imports for other purposes.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    installed = path is None or any(
        Path(path).is_relative_to(sysconfig.get_path(each)) for each in INSTALLED
    )
    if installed:
        yield
        return
    with _registering:  # the register is one for all threads
        own = getattr(module, "__name__", "") in cloudpickle.list_registry_pickle_by_value()
        if not own:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            if not own:
                cloudpickle.unregister_pickle_by_value(module)


def _cloudpickle() -> Any:  # noqa: ANN401  a module
    """Return cloudpickle. Raises InvalidRequest if it is not installed."""
    try:
        import cloudpickle
    except ImportError as error:
        raise InvalidRequest(
            "function: cloudpickle is not installed, and it packs functions: install it with pip "
            "install 'muster-gpu[client]'",
            field="function",
        ) from error
    return cloudpickle
