"""The pages' pure functions, called in the page."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Tab, tab
from tests.integration.gateway_world import gateway_world

CALL = """async ([module, name, args]) => {
  const base = document.querySelector('script[src]').src.replace('main.js', '');
  return (await import(base + module))[name](...args);
}"""


@pytest.fixture
async def page(tmp_path: Path, browser: Any) -> AsyncIterator[Tab]:
    async with gateway_world(tmp_path) as world, tab(browser, world.url) as found:
        await found.page.goto(world.url)
        yield found


async def call(page: Tab, module: str, name: str, *args: Any) -> Any:
    return await page.page.evaluate(CALL, [module, name, list(args)])


async def run(page: Tab, module: str, body: str) -> Any:
    """Run a function body with the module as `m`."""
    script = f"""async () => {{
      const base = document.querySelector('script[src]').src.replace('main.js', '');
      const m = await import(base + '{module}');
      {body}
    }}"""
    return await page.page.evaluate(script)


async def test_durations_and_amounts_are_short(page: Tab) -> None:
    given = [0, 59.4, 61, 3_600, 90_061, None]
    shown = [await call(page, "view/format.js", "duration", each) for each in given]
    assert shown == ["0s", "59s", "1m 01s", "1h 00m", "1d 01h", "\u2013"]
    assert await call(page, "view/format.js", "bytes", 1 << 34) == "16.0 GiB"
    assert await call(page, "view/format.js", "gpus", 12_475) == "124.75"
    assert await call(page, "view/format.js", "shortened", "abcdefghij", 5) == "ab…ij"


async def test_command_lines_are_quoted_for_a_shell(page: Tab) -> None:
    body = {"name": "a b", "gpus": 2, "command": ["sh", "-c", "echo 'hi' | wc"], "env": {"A": "$x"}}
    assert await call(page, "view/command_lines.js", "submit", body) == (
        "muster submit --name 'a b' --gpus 2 --env 'A=$x' -- sh -c 'echo '\\''hi'\\'' | wc'"
    )
    assert await call(page, "view/command_lines.js", "cancel", "$(rm)") == "muster cancel '$(rm)'"
    words = await call(page, "view/command_lines.js", "words", "a \"b c\" 'd e' f")
    assert words == ["a", "b c", "d e", "f"]


async def test_a_changed_job_takes_its_place_in_a_page_of_rows(page: Tab) -> None:
    found = await run(
        page,
        "view/jobs.js",
        """const rows = [{id: 'c', seq: 3, state: 'running'}, {id: 'a', seq: 1, state: 'queued'}];
        const news = [{id: 'b', seq: 2, state: 'queued'}, {id: 'c', seq: 3, state: 'completed'}];
        return m.merged(rows, news, m.matcher({}), true, 10).map(each => each.id);""",
    )
    assert found == ["b", "a"]


async def test_the_map_finds_the_gpu_under_every_point_of_its_cell(page: Tab) -> None:
    wrong = await run(
        page,
        "view/fleet_layout.js",
        """const wrong = [];
        for (const [nodes, gpus, width, height] of [[1, 8, 900, 700], [24, 8, 900, 700],
            [1280, 8, 1100, 640], [300, 16, 380, 400], [7, 1, 500, 300]]) {
          const at = m.fitted(nodes, gpus, width, height);
          for (let node = 0; node < nodes; node += 1) for (let gpu = 0; gpu < gpus; gpu += 1) {
            const {x, y} = m.corner(at, node);
            const cell = m.cellOf(at, gpu);
            if (x + cell.x + cell.w > width) wrong.push(['too wide', nodes, node, gpu]);
            const found = m.hit(at, x + cell.x + cell.w / 2, y + cell.y + cell.h / 2, nodes);
            if (!found || found.node !== node || found.gpu !== gpu) wrong.push([nodes, node, gpu]);
          }
        }
        return wrong.slice(0, 5);""",
    )
    assert wrong == []


async def test_a_node_job_or_user_is_found_on_the_map_one_after_the_other(page: Tab) -> None:
    found = await run(
        page,
        "view/fleet_words.js",
        """const gpu = (uuid, ...holders) => ({uuid, holders});
        const held = (job, name, user) => ({job, name, user, tenant: 't', share: 100});
        const nodes = [
          {id: 'node-1', gpus: [gpu('a'), gpu('b', held('j1', 'Train', 'ada'))]},
          {id: 'node-2', gpus: [gpu('c', held('j2', 'train', 'lin'))]},
        ];
        const first = m.foundAt(nodes, 'TRAIN', null);
        return [first, m.foundAt(nodes, 'train', first), m.foundAt(nodes, 'node-2', null),
          m.foundAt(nodes, 'lin', null), m.foundAt(nodes, 'nobody', null)];""",
    )
    first, second = {"node": 0, "gpu": 1}, {"node": 1, "gpu": 0}
    assert found == [first, second, second, second, None]


async def test_the_legend_follows_a_node_whose_row_is_replaced(page: Tab) -> None:
    found = await run(
        page,
        "view/fleet_words.js",
        """const held = (job, tenant, share) => ({job, name: job + '!', tenant, share});
        const gpu = (...holders) => ({state: 'IN_USE', health: 'healthy', service: 'online',
          model: 'H100', free: 100 - holders.reduce((sum, each) => sum + each.share, 0), holders});
        const node = (...gpus) => ({id: 'n', state: 'healthy', gpus});
        const nodes = [node(gpu(held('j1', 'a', 100)), gpu(held('j2', 'b', 50))), node(gpu())];
        const told = mode => m.legend(nodes, mode).rows.map(each => [each.name, each.share]);
        const before = [told('tenant'), told('job'), m.legend(nodes, 'health').totals.free];
        nodes[1] = node(gpu(held('j3', 'b', 75)));
        return [before, told('tenant'), told('model'), m.legend(nodes, 'tenant').totals.free];""",
    )
    before = [[["a", 100], ["b", 50]], [["j1!", 100], ["j2!", 50]], 150]
    assert found == [before, [["b", 125], ["a", 100]], [["H100", 225]], 75]


async def test_a_log_is_the_same_whatever_pieces_it_comes_in(page: Tab) -> None:
    found = await run(
        page,
        "view/log_lines.js",
        """const bytes = new TextEncoder().encode('first\\nzwölf\\n\\nlast without end');
        const whole = new m.LogText(0); whole.append(bytes);
        const wrong = [];
        for (let cut = 0; cut <= bytes.length; cut += 1) {
          const parts = new m.LogText(0);
          parts.append(bytes.subarray(0, cut)); parts.append(bytes.subarray(cut));
          const later = new m.LogText(cut);
          later.append(bytes.subarray(cut)); later.prepend(bytes.subarray(0, cut));
          const lines = text => JSON.stringify(text.lines);
          if (lines(parts) !== lines(whole)) wrong.push(['append', cut]);
          const begins = cut === 0 || bytes[cut - 1] === 10;
          if (begins && lines(later) !== lines(whole)) wrong.push(['prepend', cut]);
        }
        const shown = whole.lines.map(each => [each.at, each.text]);
        return [wrong, shown, m.plain('\\u001b[31mred\\u001b[0m\\r')];""",
    )
    assert found == [
        [],
        [[0, "first"], [6, "zwölf"], [13, ""], [14, "last without end"]],
        "red",
    ]


async def test_quantiles_come_from_the_buckets_of_a_histogram(page: Tab) -> None:
    text = "\n".join(
        f'muster_x_seconds_bucket{{le="{le}",model="chat"}} {count}'
        for le, count in (("0.1", 50), ("0.5", 90), ("1", 100), ("+Inf", 100))
    )
    found = await run(
        page,
        "view/metrics.js",
        f"""const found = m.buckets({text!r}, 'muster_x_seconds', {{model: 'chat'}});
        return [m.quantile(found, 0.5), m.quantile(found, 0.9), m.quantile(found, 0.99)];""",
    )
    assert found == pytest.approx([0.1, 0.5, 0.95])


async def test_roles_see_what_the_gateway_would_allow(page: Tab) -> None:
    for role, own, other in (
        ("viewer", False, False),
        ("member", True, False),
        ("operator", True, True),
        ("admin", True, True),
    ):
        who = {"role": role, "tenant": "t", "user": "u"}
        mine, theirs = {"tenant": "t", "user": "u"}, {"tenant": "t", "user": "v"}
        assert await call(page, "view/rights.js", "changes", who, mine) is own
        assert await call(page, "view/rights.js", "changes", who, theirs) is other
