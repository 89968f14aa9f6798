"""Answers in notebooks: a table of what is set, with every text escaped."""

import io

import msgspec

from libs.client.display import CELL_CHARS_MAX, Shown, end_words, job_line
from libs.client.models.jobs import ArrayShown, JobShown, MemberShown
from libs.client.progress import Progress, progress_line


class Thing(Shown):
    name: str = ""
    many: list[str] = []  # noqa: RUF012  a struct copies it
    pairs: dict[str, int] = {}  # noqa: RUF012
    parts: list[msgspec.Struct] = []  # noqa: RUF012


def test_a_table_has_what_is_set_and_nothing_is_executed() -> None:
    html = Thing(name="<script>", many=["a", "b"], pairs={"x": 1})._repr_html_()
    assert html == (
        "<table><tr><th>name</th><td>&lt;script&gt;</td></tr>"
        "<tr><th>many</th><td>a, b</td></tr><tr><th>pairs</th><td>x=1</td></tr></table>"
    )


def test_long_values_are_cut_and_parts_are_shown() -> None:
    assert f"{'a' * CELL_CHARS_MAX}..." in Thing(name="a" * 999)._repr_html_()
    assert "MemberShown" in Thing(parts=[MemberShown(node_id="node-1")])._repr_html_()


def test_the_end_of_a_job_has_its_exit_code_and_a_reason_that_says_more() -> None:
    ended = JobShown(state="failed", reason="failed", exit_code=3)
    assert end_words(ended) == "is failed with exit code 3"
    assert end_words(JobShown(state="rejected", reason="no budget")) == "is rejected (no budget)"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_in_a_terminal_and_a_line_for_each_change_elsewhere() -> None:
    states = [JobShown(id="j1", state=state) for state in ("queued", "queued", "placed", "done")]
    terminal, file = Terminal(), io.StringIO()
    for shown in (Progress(terminal), Progress(file)):
        shown.end()
        for job in states:
            shown.show(job)
        shown.end()
    assert terminal.getvalue() == "\r<Job j1: queued>\r<Job j1: placed>\r<Job j1: done>  \n"
    assert file.getvalue() == "<Job j1: queued>\n<Job j1: placed>\n<Job j1: done>\n"


def test_the_progress_of_an_array_counts_its_elements() -> None:
    counts = ArrayShown(numbers="0-9%2", states={"running": 2, "queued": 8})
    line = progress_line(JobShown(id="j1", state="queued", array=counts))
    assert line == "<Job j1: queued> 0-9%2: 2 running, 8 queued"


def test_a_job_is_one_line() -> None:
    assert job_line(JobShown(id="j1", state="queued")) == "<Job j1: queued>"
    nodes = [f"n{number}" for number in range(5)]
    job = JobShown(id="j1", name="train", state="failed", node_ids=nodes, exit_code=3)
    assert job_line(job) == "<Job j1 train: failed on n0, n1, n2 and 2 more, exit code 3>"
