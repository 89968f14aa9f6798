"""The simulation must find each planted bug within a number of seeds (`pytest -s` prints it)."""

from collections.abc import Callable
from typing import Final

import pytest

from tests.sim import faults, planted, planted_devices, planted_times
from tests.sim.weather import Rates
from tests.sim.world import simulate

Plant = Callable[[pytest.MonkeyPatch], None]

# Seeds within which each must be found: about three times what it took when this was written.
WITHIN: Final[dict[Plant, int]] = {
    planted.the_guard_is_off: 3,
    planted.neither_guard_nor_commit_numbers: 5,
    planted.no_supervisor_enforces_the_lease: 220,
    planted.an_order_names_no_attempt: 3,
    planted.another_writer_says_who_is_lost: 150,
    planted.a_release_frees_whatever_attempt_holds: 5,
    planted.orders_come_from_what_is_not_acknowledged: 10,
    planted.a_counter_is_the_message_id: 10,
    planted.a_term_begins_without_waiting: 10,
    planted.an_append_of_unknown_outcome_is_done: 5,
    planted.a_writer_owns_what_came_before_it: 5,
    planted.the_log_is_trimmed_without_the_archive: 20,
    planted.the_log_is_trimmed_without_a_snapshot: 10,
    planted_times.a_time_limit_is_counted_between_two_wall_clocks: 15,
    planted.old_silence_counts: 150,
    planted.an_empty_directory_speaks_for_the_one_before: 150,
    planted.a_long_lease_is_forgotten: 20,
    planted.what_goes_on_is_requeued_like_the_others: 30,
    planted.tenants_share_devices_unasked: 10,
    planted.a_node_is_removed_with_what_lives_there: 50,
    planted.a_mig_instance_begins_anywhere: 5,
    planted_devices.what_operators_say_of_devices_is_not_heard: 5,
    planted.the_host_is_not_counted: 45,
    planted_devices.a_faulted_device_is_as_good_as_any: 20,
    planted_devices.a_quarantined_device_is_forgotten: 20,
    planted_devices.what_was_set_is_not_put_back: 20,
    planted.the_last_comes_first: 50,
    planted.what_is_reserved_is_free_for_all: 20,
    planted.a_gang_is_given_whatever_there_is: 20,
    planted.a_gang_grows_whoever_waits: 60,
    planted.a_preempted_job_has_failed: 20,
    planted.a_turn_is_over_at_once: 20,
    planted.who_had_its_turn_keeps_its_place: 50,
    planted.nobody_waits_for_another_job: 20,
    planted.an_extension_is_not_heard: 20,
    planted.a_take_over_forgets_what_is_held: 80,
    planted.a_reservation_is_kept_only_once_it_has_begun: 30,
    planted.who_passes_takes_what_was_promised: 5,
    planted.an_array_has_room_for_all: 30,
    planted_times.a_placement_is_as_old_as_its_decision: 5,
}


# A planted bug that raises one of these does not fit the code any more, or met the time limit of
# its test: it proves nothing.
UNFIT: Final = (": TypeError(", ": AttributeError(", ": NameError(", "from pytest-timeout")
# A bug that needs a rare fault is searched in these seeds only.
NEEDS: Final[dict[Plant, str]] = {
    planted.an_empty_directory_speaks_for_the_one_before: faults.REINSTALLED
}


def planned_stop(seed: int) -> faults.Plan:
    """Nothing but the fault that this bug is about, which is rare among all others."""
    blow = faults.Blow(6.0 + seed % 5, faults.PLANNED, f"n{seed % 4}", 0.05)
    return faults.Plan(seed, Rates(), (blow,), faults.STORM_S, 0.0, (2, 2, 4, 2))


@pytest.mark.parametrize("plant", WITHIN, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(WITHIN[plant]):
        plan = (
            planned_stop(seed) if plant is planted.a_long_lease_is_forgotten else faults.plan(seed)
        )
        if plant in NEEDS and all(blow.kind != NEEDS[plant] for blow in plan.blows):
            continue
        found = simulate(plan).found
        if found is not None:
            print(
                f"\n{plant.__name__}: found by {found.checker} in seed {seed}: {found.message}"[
                    :300
                ]
            )
            assert not any(text in found.message for text in UNFIT), (
                f"{plant.__name__} does not fit the code: {found.message}"
            )
            return
    pytest.fail(f"{WITHIN[plant]} seeds do not find that {plant.__doc__}")
