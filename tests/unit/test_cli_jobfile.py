"""Job files: the accepted keys, and errors with line and remedy."""

import pytest

from libs.cli.formats.jobfile import read_jobs
from libs.common.errors import Refused


def only(text: str) -> dict[str, object]:
    (written,) = read_jobs(text, "job.yaml")
    return written.job


def fault(text: str) -> str:
    with pytest.raises(Refused) as caught:
        read_jobs(text, "job.yaml")
    return str(caught.value)


def test_a_job_file_becomes_the_gateways_json() -> None:
    text = (
        "name: train\ncommand: [python, train.py, 3]\ngpus: 2\nfraction: 0.5\ntime_limit: "
        "1h30m\ngrace: 5\nrequeue: no\nlabels: {team: nlp}"
    )
    assert only(text) == {
        "name": "train",
        "command": ["python", "train.py", "3"],
        "gpus": 2,
        "fraction": 0.5,
        "time_limit_s": 5400,
        "grace_s": 5,
        "requeue": False,
        "labels": {"team": "nlp"},
    }


def test_a_command_that_is_a_string_runs_in_a_shell() -> None:
    assert only("command: echo $HOME | wc") == {"command": ["/bin/sh", "-c", "echo $HOME | wc"]}
    assert only("command: |\n  cd x\n  make\n") == {"command": ["/bin/sh", "-c", "cd x\nmake\n"]}


def test_strings_keep_their_spelling() -> None:
    assert only("command: [a]\nenv: {N: 010, T: yes, V: 1.10, E: ''}")["env"] == {
        "N": "010",
        "T": "yes",
        "V": "1.10",
        "E": "",
    }


@pytest.mark.parametrize(
    ("text", "nodes"), [("4", {"nodes": 4}), ("2..8", {"nodes": 2, "nodes_max": 8})]
)
def test_nodes_are_a_number_or_a_range(text: str, nodes: dict[str, int]) -> None:
    assert only(f"command: [a]\nnodes: {text}") == {"command": ["a"], **nodes}
    assert (
        only(f"command: [a]\nnodes: 2\nnodes_max: {nodes['nodes']}")["nodes_max"] == nodes["nodes"]
    )


def test_a_clock_time_is_read_as_a_duration_not_as_a_number() -> None:
    assert only("command: [a]\ntime_limit: 1:30:00")["time_limit_s"] == 5400
    assert only("command: [a]\ntime_limit: 1-12:00:00")["time_limit_s"] == 129_600


def test_each_document_is_a_job_with_its_own_line() -> None:
    found = read_jobs("command: [a]\n---\n---\n# second\ncommand: [b]\n", "job.yaml")
    assert [(written.place, written.job["command"]) for written in found] == [
        ("job.yaml:1", ["a"]),
        ("job.yaml:5", ["b"]),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("command: [a]\ngpu: 2", "job.yaml:2: unknown key 'gpu' (did you mean 'gpus'?)"),
        ("cmd: [a]", "job.yaml:1: unknown key 'cmd' (did you mean 'command'?)"),
        ("command: [a]\nzzz: 1", "job.yaml:2: unknown key 'zzz'"),
        (
            "command: [a]\ngpus: two",
            "job.yaml:2: 'gpus' must be a whole number, not a string ('two')",
        ),
        (
            "command: [a]\nnodes: 2-8",
            (
                "job.yaml:2: 'nodes' must be a number of nodes, or a range such as 2..8, "
                "not a string "
                "('2-8')"
            ),
        ),
        (
            "command: [a]\ngpus: 1.5",
            "job.yaml:2: 'gpus' must be a whole number, not a number ('1.5')",
        ),
        ("command: [a]\ngpus:", "job.yaml:2: 'gpus' must be a whole number, not nothing"),
        (
            "command: [a]\ngpus: true",
            "job.yaml:2: 'gpus' must be a whole number, not a truth value ('true')",
        ),
        (
            "command: [a]\nrequeue: 1",
            "job.yaml:2: 'requeue' must be true or false, not a whole number ('1')",
        ),
        (
            "command: [a]\n\nenv: [A=1]",
            "job.yaml:3: 'env' must be a mapping of names to strings, not a list",
        ),
        ("command: [a]\nenv:\n  A: [1]", "job.yaml:3: 'A' in 'env' must be a string, not a list"),
        ("command: [a]\nname: [x]", "job.yaml:2: 'name' must be a string, not a list"),
        (
            "command: []",
            (
                "job.yaml:1: 'command' must be a list of arguments, or a string for /bin/sh -c, "
                "not an empty list"
            ),
        ),
        (
            "command:\n- a\n- {b: c}",
            "job.yaml:3: an argument of 'command' must be a string, not a mapping",
        ),
        ("command: [a]\ngpus: 1\ngpus: 2", "job.yaml:3: the key 'gpus' is repeated: remove one"),
        (
            "command: [a]\ntime_limit: 5\ntime_limit_s: 6",
            "job.yaml:3: 'time_limit_s' sets a value that another key has set already",
        ),
        (
            "gpus: 1",
            (
                "job.yaml:1: 'command' is missing: give a list of arguments, or a string "
                "for /bin/sh -c"
            ),
        ),
        ("- a\n- b", "job.yaml:1: a job must be a mapping of keys to values, not a list"),
        ("", "job.yaml contains no job"),
        ("---\n---\n", "job.yaml contains no job"),
    ],
)
def test_an_error_names_line_key_and_expected_type(text: str, expected: str) -> None:
    assert fault(text) == expected


def test_an_invalid_duration_names_the_accepted_forms() -> None:
    assert fault("command: [a]\ntime_limit: soon").startswith(
        "job.yaml:2: 'time_limit' must be a duration such as 90, 1h30m"
    )


@pytest.mark.parametrize("text", ["a: [", "a: 'x", "\tx: 1", "a: b: c", "{a", "&x *x", "a: \x07"])
def test_invalid_yaml_is_refused_with_its_line(text: str) -> None:
    assert "invalid YAML" in fault(text) and fault(text).startswith("job.yaml")
