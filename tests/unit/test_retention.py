"""Which directories of ended attempts go (services/node_agent/directories/retention.py)."""

from services.node_agent.directories.retention import Keep, Kept, Shelf, surplus

SECOND = 1_000_000_000
THREE = [Kept("a", 10, 1 * SECOND), Kept("b", 20, 2 * SECOND), Kept("c", 30, 3 * SECOND)]


def chosen(keep: Keep, uncopied: tuple[str, ...] = (), now_s: int = 10) -> str:
    return "".join(one.name for one in surplus([Shelf(THREE)], uncopied, keep, now_s * SECOND))


def test_outputs_older_than_the_bound_are_removed() -> None:
    assert chosen(Keep(age_s=8)) == "ab"
    assert chosen(Keep(age_s=9)) == "a"
    assert chosen(Keep(age_s=10)) == ""


def test_the_oldest_go_until_so_many_bytes_are_left() -> None:
    assert chosen(Keep(size_bytes=50)) == "a"
    assert chosen(Keep(size_bytes=49)) == "ab"
    assert chosen(Keep(size_bytes=0)) == "abc"
    assert chosen(Keep(size_bytes=60)) == ""


def test_the_oldest_go_until_so_many_jobs_are_left() -> None:
    assert chosen(Keep(jobs=1)) == "ab"
    assert chosen(Keep(jobs=3)) == ""


def test_any_bound_is_enough() -> None:
    assert chosen(Keep(age_s=9, size_bytes=30, jobs=3)) == "ab"


def test_outputs_not_yet_archived_stay_whatever_the_bounds() -> None:
    assert chosen(Keep(age_s=0, size_bytes=0, jobs=0), uncopied=("b",)) == "ac"


def test_without_a_bound_nothing_goes() -> None:
    assert chosen(Keep()) == ""


def of_two(keep: Keep, uncopied: tuple[str, ...] = ()) -> str:
    """Directories of a tenant with 60 bytes in three, and of one with 2 bytes in two that are
    older.
    """
    small = Shelf([Kept("x", 1, 0, "quiet"), Kept("y", 1, 0, "quiet")])
    return "".join(one.name for one in surplus([small, Shelf(THREE)], uncopied, keep, 10 * SECOND))


def test_a_tenant_that_has_more_loses_before_one_whose_directories_are_older() -> None:
    assert of_two(Keep(size_bytes=32)) == "ab"
    assert of_two(Keep(size_bytes=2)) == "abc"
    assert of_two(Keep(size_bytes=1)) == "abcx"
    assert of_two(Keep(jobs=4)) == "a"
    assert of_two(Keep(jobs=2)) == "axb"


def test_outputs_one_tenant_may_not_lose_make_another_tenant_lose_more() -> None:
    assert of_two(Keep(size_bytes=0), uncopied=("a", "b", "c")) == "xy"


def test_a_shelf_knows_what_is_on_it() -> None:
    shelf = Shelf(THREE)
    shelf.remove(THREE[1])
    assert (list(shelf.kept), shelf.size_bytes) == (["a", "c"], 40)
