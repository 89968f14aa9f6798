"""docs/spans.md lists every span and every attribute that the code records."""

import re

from libs.common.spans import job_spans
from libs.common.transport import bus_spans
from services.api_gateway.http import request_trace
from services.api_gateway.openai import request_spans
from tests.tidy import ROOT

PAGE = (ROOT / "docs" / "spans.md").read_text()
FILES = (
    "libs/common/spans/job_spans.py",
    "libs/common/transport/bus_spans.py",
    "services/api_gateway/http/request_trace.py",
    "services/api_gateway/openai/request_spans.py",
    "services/node_agent/jobs/attempt_spans.py",
)
PREFIXES = ("muster", "http", "gen_ai", "server", "process", "messaging")
NAME = re.compile(rf'"((?:{"|".join(PREFIXES)})\.[a-z0-9_.]+)"')


def test_every_span_has_a_row() -> None:
    names = {
        value
        for module in (job_spans, bus_spans, request_trace, request_spans)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and value.startswith("muster.")
    }
    assert len(names) > 15
    assert {name for name in names if f"\n| `{name}` |" not in PAGE} == set()


def test_every_attribute_is_on_the_page() -> None:
    names = {name for file in FILES for name in NAME.findall((ROOT / file).read_text())}
    assert {"muster.job.id", "gen_ai.request.model"} < names
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_the_page_names_no_span_or_attribute_that_nothing_records() -> None:
    text = "".join((ROOT / file).read_text() for file in FILES)
    named = set(re.findall(rf"`((?:{'|'.join(PREFIXES)})\.[a-z0-9_.]+)`", PAGE))
    assert {name for name in named if f'"{name}"' not in text} == set()
