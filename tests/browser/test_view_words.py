"""The pages' pure functions that make words: commands, sentences with links, forms, scales."""

from tests.browser.chromium import Tab
from tests.browser.test_view_functions import call, page

__all__ = ["page"]

JOB = "jea37k42hpa"


async def test_the_command_of_a_list_lists_the_same_jobs(page: Tab) -> None:
    shown = [
        await call(page, "view/command_lines.js", "jobs", filter_)
        for filter_ in (
            {},
            {"all": True},
            {"state": "failed"},
            {"user": "ada"},
            {"user": "ada", "all": True},
            {"state": "failed", "user": "ada", "kind": "job"},
        )
    ]
    assert shown == [
        "muster ps --all --state pending,queued,begun,placed,running,releasing",
        "muster ps --all",
        "muster ps --state failed --all",
        "muster ps --user ada",
        "muster ps --all --user ada",
        "muster ps --state failed --user ada --kind job",
    ]


async def test_ids_in_a_sentence_become_links(page: Tab) -> None:
    found = await call(page, "view/links.js", "pieces", f"cancel hog ({JOB}), which has 4 GPUs")
    assert found == [
        {"text": "cancel hog (", "job": ""},
        {"text": JOB, "job": JOB},
        {"text": "), which has 4 GPUs", "job": ""},
    ]
    text = "the last: failed, q.1-4; q.1-45 and xq.1-4"
    found = await call(page, "view/links.js", "pieces", text, "q.1")
    assert [each["job"] for each in found if each["job"]] == ["q.1-4", "q.1-45"]
    remedies = (f"cancel hog ({JOB}), which", f"muster release {JOB}", "cancel another job")
    jobs = [await call(page, "view/links.js", "cancelled", each) for each in remedies]
    assert jobs == [JOB, "", ""]


async def test_an_explanation_says_what_it_counts(page: Tab) -> None:
    kinds = ("GPUs in use: needs 2", "queue order", "tenant limit", "devices being freed")
    words = [await call(page, "view/why.js", "amount", {"what": w, "count": 2}) for w in kinds]
    assert words == ["2 nodes", "2 jobs", "", "2 GPUs"]
    long = {"answer": "it needs 2 nodes, and no", "blockers": [{"what": "GPUs in use"}]}
    other = {"answer": "it would fit, but", "blockers": [{"what": "queue order"}]}
    short = [await call(page, "view/why.js", "shortReason", each) for each in (long, other)]
    assert short == ["GPUs in use", "it would fit, but"]


async def test_the_scale_of_the_time_slider_and_its_inverse_agree(page: Tab) -> None:
    for step in (0, 1, 500, 998):
        time = await call(page, "view/moments.js", "timeAt", step, 1_000_000, 9_000_000)
        assert await call(page, "view/moments.js", "stepOf", time, 1_000_000, 9_000_000) == step
    # The right end is now, so a past moment is never there.
    assert await call(page, "view/moments.js", "stepOf", 9_000_000, 1_000_000, 9_000_000) == 999
    ends = [await call(page, "view/moments.js", "stepUnder", x, 216) for x in (0, 108, 216)]
    assert ends == [0, 500, 1_000]


async def test_a_command_is_typed_again_as_it_was(page: Tab) -> None:
    for words in (["python", "a b.py", "--x={port}"], ["sh", "-c", "echo $HOME | wc"]):
        typed = await call(page, "view/forms.js", "typed", words)
        assert await call(page, "parts/form.js", "command", typed) == words
    named = await call(page, "parts/form.js", "secrets", "TOKEN\nkey=API_KEY")
    assert named == {"TOKEN": "TOKEN", "API_KEY": "key"}


async def test_bold_and_code_of_an_answer_are_found_and_the_rest_stays(page: Tab) -> None:
    text = "I am **tiny**, see `a*b*c`:\n```python\nprint(1)\n```\n2 ** 3 ** 4 <b>x</b>"
    found = await call(page, "view/chat_text.js", "parts", text)
    assert [(each["kind"], each["text"]) for each in found] == [
        ("plain", "I am "),
        ("bold", "tiny"),
        ("plain", ", see "),
        ("code", "a*b*c"),
        ("plain", ":\n"),
        ("block", "print(1)"),
        ("plain", "\n2 ** 3 ** 4 <b>x</b>"),
    ]


async def test_the_first_reading_of_a_chart_stands_in_a_window_of_a_minute(page: Tab) -> None:
    assert await call(page, "parts/chart.js", "spanOf", [1_000]) == [1_000, 1_060]
    assert await call(page, "parts/chart.js", "spanOf", [1_000, 1_005, 1_090]) == [1_000, 1_090]
