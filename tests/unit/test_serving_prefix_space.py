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


class Asked(PrefixIndex[str]):
    """An index that counts the look-ups of what each tenant has."""

    times = 0

    def by_tenant(self) -> dict[str, int]:
        self.times += 1
        return super().by_tenant()


def test_each_index_is_asked_once_however_many_are_shortened() -> None:
    indexes = [Asked(BYTES_MAX) for _ in range(100)]
    for number, index in enumerate(indexes):
        tenant = "large" if number < 60 else "small"
        index.add(chain(tenant.encode(), TEXT + b"%06d" % number * 256), "r", 0, tenant)
    each = indexes[0].used_bytes
    space = PrefixSpace(99 * each)
    for index in indexes:
        space.note(index)
    assert 0 < space.used_bytes <= 99 * each
    assert space.used_bytes == sum(index.used_bytes for index in indexes)
    assert [index.times for index in indexes] == [1] * 100
    assert len([index for index in indexes[:60] if not index.used_bytes]) >= 6
    assert all(index.bytes_of("small") == each for index in indexes[60:])


def test_tenants_lose_in_turns_what_the_largest_has_more_than_the_others() -> None:
    indexes: list[PrefixIndex[str]] = [PrefixIndex(BYTES_MAX) for _ in range(64)]
    for number, index in enumerate(indexes):
        index.add(chain(b"", TEXT + b"%06d" % number * 256), "r", 0, f"t{number % 2}")
    space = PrefixSpace(63 * indexes[0].used_bytes)
    for index in indexes:
        space.note(index)
    left = [sum(index.bytes_of(tenant) for index in indexes) for tenant in ("t0", "t1")]
    assert abs(left[0] - left[1]) <= indexes[-1].used_bytes


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
