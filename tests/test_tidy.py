"""Rules of STYLE.md that a program can check: sizes, names, imports, purity and service cards.

`python -m tests.test_tidy` prints the sizes. The reading of the source is in tests/tidy.py; an
exception is a row of one of the tables here, with its reason.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import pytest

from libs.common import fold, subjects
from libs.common.facts import KINDS
from tests import tidy
from tests.pure_files import PURE
from tests.tidy import CODE, ROOT, Function, is_in, name, sources, tree

FUNCTION_LINES_MAX: Final = 60
FUNCTION_LINES_MEDIAN_MAX: Final = 10
FILE_LINES_MAX: Final = 400
# Functions over the bound since lines became shorter. Split them by meaning; add none.
TO_SHORTEN: Final = frozenset({"by_gateways", "wild"})
LARGEST_SHOWN: Final = 10

IMPURE_MODULES: Final = (
    *("asyncio", "os", "time", "random", "uuid", "nats", "socket", "subprocess", "pathlib"),
    *("datetime", "threading"),
)
NATS_STEMS: Final = (
    "bus_nats",
    "connection_nats",
    "copies_nats",
    "feed_nats",
    "kv_nats",
    "leader_nats",
    "log_jetstream",
    "objects_nats",
    "once_nats",
    "reconnecting",
    "revisions_nats",
    "second_connection",
    "pages_nats",
    "stream_nats",
    "survey_nats",
    "terms_nats",
    "uploads_nats",
)
NATS_FILES: Final = tuple(f"libs/common/transport/{stem}.py" for stem in NATS_STEMS)
EMPTY_NAMES: Final = (
    "manager",
    "handler",
    "handlers",
    "util",
    "utils",
    "helper",
    "helpers",
    "base",
    "impl",
)

# Where everything is caught, and why.
WIDE_CATCHES: Final = {
    "libs/client/function/outcome.py in _raise": "the class of a user's exception raises anything",
    "libs/client/function/outcome.py in value_of": "the classes in a user's result raise anything",
    "libs/client/function/runner.py in call_function": "a user's function raises anything",
    "libs/job/stacks/sitecustomize.py in _register_again": (
        "must never break a job, whatever its interpreter is"
    ),
    "libs/job/stacks/sitecustomize.py in _write_ending": (
        "a job ends as it would without the hook"
    ),
    "libs/compose/replaced.py in delete_when_filled": (
        "the nats-server must never end because its old store cannot be deleted"
    ),
    "services/node_agent/diagnosis/dump_reading.py in _plain": "a damaged pickle raises anything",
    "libs/common/process/service.py in run": (
        "the one place: logs the cause and exits with its code"
    ),
    "libs/common/process/service.py in _until_stopped": "the same, once the event loop runs",
    "services/api_gateway/access/time_shares.py in _passed_on": (
        "an error thrown into a coroutine goes on into the one that it wraps, whatever it is"
    ),
    "services/scheduler/plugins/plugged.py in _ask": (
        "a plug-in raises anything, and never stops a scheduler"
    ),
    "services/node_agent/drivers/child.py in _open": (
        "the bindings raise anything, on import too; each vendor is tried by itself"
    ),
    "services/node_agent/jobs/closing.py in close": (
        "a bug that the closing of one job meets must not end the agent of the others"
    ),
    "services/node_agent/device_work.py in check_release": (
        "a bug that the check of one job meets must not end the agent of the others"
    ),
    "services/node_agent/jobs/beginning.py in begin": (
        "a bug that the start of one job meets must not end the agent of the others"
    ),
    "services/node_agent/jobs/beginning.py in _ready": "removes what it prepared, and raises again",
    "services/node_agent/jobs/beginning.py in _refuse": "the refusal is reported in any case",
    "services/node_agent/resident/resident.py in carry_out": (
        "a bug that one kept model meets must not end the agent of the jobs"
    ),
    "services/node_agent/supervisor/serving.py in serve": (
        "a forked child ends by os._exit, and writes down its own bug first"
    ),
    "services/scheduler/questions/aside.py in _leave": (
        "a forked child ends by os._exit, and writes down its own bug first"
    ),
    "tests/sim/loop.py in run_in_executor": (
        "hands a function's error to the future, as a real executor does"
    ),
}
# Where a cancellation is caught and not always raised again, and why.
CAUGHT_CANCELLATIONS: Final = {
    "libs/cli/following/execution.py in _forward": "a future's, on a thread: the command has ended",
    "services/api_gateway/openai/dispatch.py in _guarded": (
        "its own guard's, which it takes back; any other is raised"
    ),
    "services/api_gateway/openai/dispatch.py in _try": (
        "of a hedge whose replica answers first; any other is raised"
    ),
}
MACHINE_PATHS: Final = re.compile(r"(?<![\w.~$}-])/(?:work|root|home)/")


def code() -> list[Path]:
    return sources(*CODE)


def pure() -> list[Path]:
    return sorted(path for pattern in PURE for path in ROOT.glob(pattern))


def all_functions() -> list[Function]:
    return [function for path in code() for function in tidy.functions(path)]


def test_no_function_is_longer_than_its_bound() -> None:
    longer = [each for each in all_functions() if each.lines > FUNCTION_LINES_MAX]
    assert [each for each in longer if each.name not in TO_SHORTEN] == []


def test_the_median_function_is_short() -> None:
    assert median(each.lines for each in all_functions()) <= FUNCTION_LINES_MEDIAN_MAX


def test_no_file_is_longer_than_its_bound() -> None:
    assert [
        (name(path), tidy.lines(path)) for path in code() if tidy.lines(path) > FILE_LINES_MAX
    ] == []


def test_pure_files_import_no_io_clock_or_chance() -> None:
    assert [found for path in pure() for found in tidy.imports_of(path, _impure)] == []


def _impure(module: str) -> bool:
    return any(is_in(module, each) for each in IMPURE_MODULES)


def test_pure_files_never_iterate_over_a_set() -> None:
    attributes = tidy.set_attributes(pure())
    assert [found for path in pure() for found in tidy.set_loops(path, attributes)] == []


def test_pure_files_compare_no_floats_for_equality() -> None:
    assert [found for path in pure() for found in tidy.float_equalities(path)] == []


def test_nats_is_imported_in_its_own_files_only() -> None:
    others = [path for path in sources("libs", "services") if name(path) not in NATS_FILES]
    assert [
        found
        for path in others
        for found in tidy.imports_of(path, lambda module: is_in(module, "nats"))
    ] == []


def test_services_never_import_each_other() -> None:
    assert [
        found
        for path in sources("services")
        for found in tidy.imports_of(path, _other_service(path))
    ] == []


def _other_service(path: Path) -> Callable[[str], bool]:
    own = ".".join(path.relative_to(ROOT).parts[:2])
    return lambda module: (
        is_in(module, "services") and module != "services" and not is_in(module, own)
    )


def test_libs_never_import_services() -> None:
    assert [
        found
        for path in sources("libs")
        for found in tidy.imports_of(path, lambda module: is_in(module, "services"))
    ] == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [
        name(path) for path in code() if path.stem in EMPTY_NAMES or path.parent.name in EMPTY_NAMES
    ] == []


def test_nothing_catches_everything_but_where_it_must() -> None:
    assert sorted(found for path in code() for found in tidy.wide_catches(path)) == sorted(
        WIDE_CATCHES
    )


def test_no_cancellation_is_swallowed() -> None:
    assert sorted(
        found
        for path in sources("libs", "services")
        for found in tidy.forgotten_cancellations(path)
    ) == sorted(CAUGHT_CANCELLATIONS)


def test_every_module_says_what_it_is() -> None:
    bare = [path for path in code() if tree(path).body and not ast.get_docstring(tree(path))]
    assert [name(path) for path in bare] == []


@pytest.mark.parametrize(
    "service", [path.parent.name for path in sorted(ROOT.glob("services/*/__main__.py"))]
)
def test_each_service_s_card_lists_the_facts_that_it_writes(service: str) -> None:
    card = re.sub(r"\n +", " ", str(import_module(f"services.{service}").__doc__))
    assert [line.split(":")[0] for line in card.splitlines()[2:]] == [
        "Owns",
        "Reads",
        "Writes",
        "Decides",
        "Never",
    ]
    writes = next(line for line in card.splitlines() if line.startswith("Writes: "))
    named = [
        word
        for word in re.findall(r"\w+", writes)
        if word in {fact.__name__ for fact in subjects.WRITER_OF}
    ]
    assert named == [
        fact.__name__
        for fact, writer in subjects.WRITER_OF.items()
        if writer == WRITERS.get(service)
    ]


WRITERS: Final = {
    "api_gateway": subjects.GATEWAY_KIND,
    "quota": subjects.QUOTA_KIND,
    "scheduler": subjects.SCHEDULER_KIND,
    "node_agent": subjects.NODE_KIND,
}


def test_every_fact_has_one_writer_and_one_row_in_the_fold() -> None:
    assert list(KINDS.values()) == list(subjects.WRITER_OF) == list(fold._FOLDS)


def test_no_two_files_of_tests_have_one_name() -> None:
    """Outside of packages: they could not be collected together."""
    found = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert [name for name, count in Counter(path.name for path in found).items() if count > 1] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{path}: {text[m.start() : m.end() + 20]!r}"
        for path, text in tidy.texts()
        for m in MACHINE_PATHS.finditer(text)
    ]
    assert [line for line in found if not line.startswith("tests/test_tidy.py: ")] == []


def main() -> None:
    """Print the sizes."""
    sizes = sorted(each.lines for each in all_functions())
    tenths = quantiles(sizes, n=10)
    print(
        f"functions: {len(sizes)}, median {median(sizes):.0f}, p90 {tenths[8]:.0f}, longest "
        f"{sizes[-1]} lines"
    )
    print("longest functions:")
    for each in sorted(all_functions(), key=lambda each: -each.lines)[:LARGEST_SHOWN]:
        print(f"  {each.lines:4} {each.path} {each.name}")
    print("largest files:")
    for path in sorted(code(), key=lambda path: -tidy.lines(path))[:LARGEST_SHOWN]:
        print(f"  {tidy.lines(path):4} {name(path)}")


if __name__ == "__main__":
    main()
