"""The prefix index against a twin that keeps whole prompts in a list."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.prefix_index import BLOCK_BYTES, TENANT_BYTES, PrefixIndex, chain

TTL_NS = 50
REPLICAS = ("r0", "r1", "r2")
# Few different blocks, so that prompts share prefixes.
PROMPT = st.lists(st.sampled_from(b"ab"), min_size=0, max_size=6).map(
    lambda letters: b"".join(bytes([each]) * BLOCK_BYTES for each in letters)
)
STEP = st.tuples(PROMPT, st.sampled_from(REPLICAS), st.integers(0, 30), st.integers(0, 9))


@settings(deadline=None)
@given(st.lists(STEP, max_size=40), PROMPT)
def test_the_matches_are_those_of_a_naive_twin(
    steps: list[tuple[bytes, str, int, int]], asked: bytes
) -> None:
    index: PrefixIndex[str] = PrefixIndex(ttl_ns=TTL_NS)
    sent: list[tuple[bytes, str, int]] = []
    now_ns = 0
    for prompt, replica, later_ns, action in steps:
        now_ns += later_ns
        if action == 0:
            index.forget(replica)
            sent = [each for each in sent if each[1] != replica]
            continue
        index.add(chain(b"", prompt), replica, now_ns)
        sent.append((prompt, replica, now_ns))
        assert index.matches(chain(b"", asked), REPLICAS, now_ns) == [
            _held(sent, asked, each, now_ns) for each in REPLICAS
        ]


def _held(sent: list[tuple[bytes, str, int]], asked: bytes, replica: str, now_ns: int) -> int:
    """Return how many blocks from the start the replica was sent within the time to live."""
    fresh = [prompt for prompt, each, when in sent if each == replica and now_ns - when <= TTL_NS]
    blocks = 0
    for end in range(BLOCK_BYTES, len(asked) + 1, BLOCK_BYTES):
        if not any(prompt.startswith(asked[:end]) for prompt in fresh):
            break
        blocks += 1
    return blocks


@settings(deadline=None)
@given(st.lists(st.tuples(PROMPT, st.sampled_from(REPLICAS)), max_size=60), st.integers(0, 8))
def test_a_small_index_forgets_and_never_claims_too_much(
    sent: list[tuple[bytes, str]], entries: int
) -> None:
    bytes_max = TENANT_BYTES + 540 * entries
    index: PrefixIndex[str] = PrefixIndex(bytes_max=bytes_max)
    for prompt, replica in sent:
        index.add(chain(b"", prompt), replica, 0)
        assert index.used_bytes <= bytes_max
        whole: PrefixIndex[str] = PrefixIndex()
        for earlier, other in sent:
            whole.add(chain(b"", earlier), other, 0)
        hashes = chain(b"", prompt)
        small, large = (each.matches(hashes, REPLICAS, 0) for each in (index, whole))
        assert all(a <= b for a, b in zip(small, large, strict=True))
