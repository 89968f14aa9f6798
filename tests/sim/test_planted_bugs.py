"""The simulation must find each planted bug within a number of seeds (`pytest -s` prints which)."""

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.sim import (
    faults,
    planted,
    planted_devices,
    planted_fabric,
    planted_kept,
    planted_leases,
    planted_log,
    planted_memory,
    planted_times,
)
from tests.sim.seeds import first_found
from tests.sim.weather import Rates
from tests.sim.world import simulate

Plant = Callable[[pytest.MonkeyPatch], None]

# Seeds within which each must be found: about three times what it took when this was written.
WITHIN: Final[dict[Plant, int]] = {
    planted_memory.broker_forgets_what_it_granted: 20,
    planted_memory.dead_holders_keep_their_memory: 20,
    planted_memory.release_ends_the_attempt_and_frees_nothing: 20,
    planted_log.log_accepts_any_expected_sequence: 3,
    planted_log.log_accepts_any_sequence_and_readers_count_no_commits: 5,
    planted_leases.no_supervisor_enforces_the_lease: 220,
    planted.an_order_names_no_attempt: 3,
    planted_leases.another_writer_declares_nodes_lost: 150,
    planted.a_release_frees_another_attempt: 5,
    planted_log.orders_are_sent_before_acknowledgement: 10,
    planted_log.a_counter_is_the_message_id: 10,
    planted_leases.a_term_begins_without_waiting: 10,
    planted_log.an_append_of_unknown_outcome_is_done: 5,
    planted_log.a_writer_disowns_its_earlier_commits: 5,
    planted_log.the_log_is_trimmed_without_the_archive: 20,
    planted_log.the_log_is_trimmed_without_a_snapshot: 10,
    planted_times.a_time_limit_is_counted_between_two_wall_clocks: 15,
    planted_leases.silence_before_a_return_counts: 150,
    planted_leases.an_empty_directory_frees_attempts_of_the_old_one: 150,
    planted_leases.a_long_lease_is_forgotten: 20,
    planted_leases.a_job_that_ignores_its_lease_is_requeued_too_early: 30,
    planted.tenants_share_devices_without_permission: 10,
    planted_leases.a_node_is_removed_with_running_jobs: 50,
    planted.a_mig_instance_begins_anywhere: 5,
    planted_devices.operators_device_service_is_ignored: 5,
    planted.cpus_and_memory_are_not_counted: 45,
    planted_devices.faulted_devices_take_work: 20,
    planted_devices.a_quarantined_device_is_forgotten: 20,
    planted_devices.device_controls_are_not_restored: 20,
    planted.fifo_runs_the_last_job_first: 150,
    planted.reserved_devices_are_free_for_all: 20,
    planted.a_gang_gets_more_nodes_than_its_maximum: 20,
    planted.a_gang_grows_although_other_jobs_wait: 60,
    planted.a_preemption_counts_as_a_failure: 20,
    planted.a_time_slice_ends_at_once: 60,
    planted.a_job_keeps_its_place_after_its_time_slice: 50,
    planted.dependencies_are_ignored: 20,
    planted.allocation_extensions_are_ignored: 20,
    planted.a_take_over_forgets_timers_of_held_devices: 80,
    planted.a_reservation_is_kept_only_once_it_has_begun: 30,
    planted.a_backfilled_job_delays_the_reservation: 5,
    planted.the_array_limit_is_ignored: 30,
    planted_kept.a_placement_evicts_no_resident_data: 90,
    planted_times.a_placement_is_as_old_as_its_decision: 5,
    planted_fabric.nodes_are_probed_whatever_runs_there: 20,
    planted_fabric.a_refused_probe_counts_as_failed: 20,
    planted_fabric.a_gang_starts_before_its_preflight: 10,
    planted_fabric.a_gang_starts_on_a_suspect_of_its_preflight: 60,
}


# A planted bug that raises one of these does not fit the code any more, or met the time limit of
# its test: it proves nothing.
UNFIT: Final = (": TypeError(", ": AttributeError(", ": NameError(", "from pytest-timeout")
# A bug that needs a rare fault is searched in these seeds only.
NEEDS: Final[dict[Plant, str]] = {
    planted_leases.an_empty_directory_frees_attempts_of_the_old_one: faults.REINSTALLED
}
# The search begins at these seeds, which found the bug when this was written.
BEGINS: Final[dict[Plant, int]] = {
    planted_leases.no_supervisor_enforces_the_lease: 8,
    planted_leases.silence_before_a_return_counts: 71,
    planted_leases.an_empty_directory_frees_attempts_of_the_old_one: 25,
    planted_leases.a_node_is_removed_with_running_jobs: 30,
    planted.cpus_and_memory_are_not_counted: 11,
    planted.fifo_runs_the_last_job_first: 46,
    planted.a_time_slice_ends_at_once: 24,
    planted.a_job_keeps_its_place_after_its_time_slice: 18,
    planted.allocation_extensions_are_ignored: 6,
    planted.a_reservation_is_kept_only_once_it_has_begun: 16,
    planted.a_take_over_forgets_timers_of_held_devices: 18,
    planted_kept.a_placement_evicts_no_resident_data: 23,
    planted_fabric.a_gang_starts_on_a_suspect_of_its_preflight: 22,
    planted_devices.a_quarantined_device_is_forgotten: 3,
    planted_devices.device_controls_are_not_restored: 3,
}


def planned_stop(seed: int) -> faults.Plan:
    """Nothing but the fault that this bug is about, which is rare among all others."""
    blow = faults.Blow(6.0 + seed % 5, faults.PLANNED, f"n{seed % 4}", 0.05)
    return faults.Plan(
        seed=seed,
        rates=Rates(),
        blows=(blow,),
        storm_s=faults.STORM_S,
        skew_max_s=0.0,
        nodes=(2, 2, 4, 2),
    )


# These take longest: `make drills` searches them.
SLOW: Final = (
    planted_kept.a_placement_evicts_no_resident_data,
    planted_devices.faulted_devices_take_work,
    planted.a_preemption_counts_as_a_failure,
    planted_leases.another_writer_declares_nodes_lost,
    planted.a_gang_gets_more_nodes_than_its_maximum,
    planted.a_gang_grows_although_other_jobs_wait,
    planted_log.a_writer_disowns_its_earlier_commits,
    planted_log.the_log_is_trimmed_without_a_snapshot,
    planted_log.the_log_is_trimmed_without_the_archive,
    planted.allocation_extensions_are_ignored,
    planted.a_take_over_forgets_timers_of_held_devices,
    planted.a_time_slice_ends_at_once,
    planted.cpus_and_memory_are_not_counted,
    planted.fifo_runs_the_last_job_first,
    planted_fabric.a_gang_starts_on_a_suspect_of_its_preflight,
    planted_leases.a_job_that_ignores_its_lease_is_requeued_too_early,
    planted_leases.a_node_is_removed_with_running_jobs,
)
PLANTS: Final = [
    pytest.param(plant, marks=pytest.mark.drill if plant in SLOW else ()) for plant in WITHIN
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = first_found(simulate(plan) for plan in searched(plant))
    assert not any(text in found.message for text in UNFIT), (
        f"{plant.__name__} does not fit the code: {found.message}"
    )


def searched(plant: Plant) -> Iterator[faults.Plan]:
    """Yield the plans of faults in which this bug is searched."""
    for seed in range(BEGINS.get(plant, 0), WITHIN[plant]):
        plan = faults.plan(seed)
        if plant is planted_leases.a_long_lease_is_forgotten:
            yield planned_stop(seed)
        elif plant not in NEEDS or any(blow.kind == NEEDS[plant] for blow in plan.blows):
            yield plan
