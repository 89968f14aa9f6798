"""The prefix indexes of all models of a gateway stay within one bound."""

from services.api_gateway.serving.prefix_index import PrefixIndex, chain
from services.api_gateway.serving.prefix_space import PrefixSpace
from services.api_gateway.serving.routing import Prompt, Router

TEXT = b"".join(b"%04d" % number * 64 for number in range(8))
BYTES_MAX = 1 << 20


def test_a_tenant_that_floods_many_models_loses_its_own_prompts_first() -> None:
    space = PrefixSpace(BYTES_MAX)
    indexes: list[PrefixIndex[str]] = [PrefixIndex(BYTES_MAX) for _ in range(50)]
    modest = chain(b"modest", TEXT)
    indexes[0].add(modest, "r", 0, "modest")
    space.note(indexes[0])
    for number in range(5_000):
        index = indexes[number % len(indexes)]
        index.add(chain(b"greedy", TEXT + b"%06d" % number * 256), "r", 1, "greedy")
        space.note(index)
        assert space.used_bytes <= BYTES_MAX
        assert space.used_bytes == sum(each.used_bytes for each in indexes)
    assert indexes[0].matches(modest, ("r",), 2, "modest") == [8]


def test_a_model_that_is_gone_leaves_its_space_to_others() -> None:
    space = PrefixSpace(BYTES_MAX)
    index: PrefixIndex[str] = PrefixIndex(BYTES_MAX)
    index.add(chain(b"", TEXT), "r", 0, "t")
    space.note(index)
    assert space.used_bytes == index.used_bytes > 0
    for _ in range(2):
        space.remove(index)
        assert space.used_bytes == 0


def test_one_entry_that_is_larger_than_the_space_is_forgotten() -> None:
    space = PrefixSpace(100)
    index: PrefixIndex[str] = PrefixIndex(BYTES_MAX)
    index.add(chain(b"", TEXT), "r", 0, "t")
    space.note(index)
    assert space.used_bytes == index.used_bytes == 0
    assert index.bytes_of("t") == 0


def test_the_prompts_that_a_router_sends_count_in_the_space() -> None:
    space = PrefixSpace(BYTES_MAX)
    router: Router[str] = Router(space=space)
    prompt = Prompt(tokens=512, size=len(TEXT), hashes=chain(b"", TEXT), session=0)
    router.send(prompt, router.route(prompt, ("r",), 0), 0)
    assert space.used_bytes == router.index.used_bytes > 0
