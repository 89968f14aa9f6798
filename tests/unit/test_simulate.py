"""A replay by hand-worked examples: what the scheduler's rules do with a trace in virtual time, and
what is measured.
"""

import sys
from pathlib import Path

import pytest

from libs.cli.verbs import simulate
from libs.common.errors import Refused
from libs.common.model import JobId, NodeId, TenantId
from services.scheduler.placement.strategies import DEFAULT
from services.scheduler.simulate import __main__ as process
from services.scheduler.simulate.meter import Meter
from services.scheduler.simulate.nodes import nodes_of
from services.scheduler.simulate.replay import Replay
from services.scheduler.simulate.report import completion, report, size_of, utilisation
from services.scheduler.simulate.resort import Resort
from services.scheduler.simulate.trace import SECOND, Row, requests


def meter_of(nodes: str) -> Meter:
    return Meter({node.node_id: 100 * len(node.gpus) for node in nodes_of(nodes)})


def replayed(nodes: str, *rows: Row, order: str = "fifo", until: int | None = None) -> Replay:
    replay = Replay(
        nodes=nodes_of(nodes),
        requests=requests(rows, 8),
        order=order,
        place=DEFAULT,
        meter=meter_of(nodes),
    )
    replay.run(until and until * SECOND)
    return replay


def resorted(
    nodes: str, *rows: Row, order: str, overhead: int = 0, until: int | None = None
) -> Resort:
    replay = Resort(
        nodes=nodes_of(nodes),
        requests=requests(rows, 8),
        order=order,
        place=DEFAULT,
        meter=meter_of(nodes),
        overhead_ns=overhead * SECOND,
    )
    replay.run(until and until * SECOND)
    return replay


def ends(replay: Replay | Resort) -> dict[str, int]:
    """Seconds from submission to end."""
    return {str(job): time // SECOND for job, time in replay.meter.completions.items()}


LONG, SHORT = Row("long", 0, 100, 8), Row("short", 10, 20, 8)


def test_a_job_that_does_not_fit_waits_for_the_one_before_it() -> None:
    assert ends(replayed("1x8", LONG, SHORT)) == {"long": 100, "short": 110}


@pytest.mark.parametrize(
    ("backfill", "limits", "done"), [(None, 0, 130), (True, 0, 130), (True, 1, 30), (False, 1, 130)]
)
def test_a_short_job_passes_where_its_limit_says_that_it_is_short(
    backfill: bool | None, limits: float, done: int
) -> None:
    rows = [Row("long", 0, 100, 6), Row("whole", 1, 10, 8), Row("short", 10, 30, 2)]
    replay = Replay(
        nodes=nodes_of("1x8"),
        requests=requests(rows, 8, limits=limits),
        order="fifo",
        place=DEFAULT,
        meter=meter_of("1x8"),
        backfill=backfill,
    )
    replay.run()
    assert ends(replay)["short"] == done


def test_a_job_ends_at_its_limit() -> None:
    assert ends(replayed("1x8", Row("a", 0, 100, 1, time_limit_s=60))) == {"a": 60}


def test_a_higher_priority_goes_before_an_earlier_submission() -> None:
    rows = (LONG, SHORT, Row("urgent", 20, 5, 8, priority=90))
    assert ends(replayed("1x8", *rows, order="priority")) == {
        "long": 100,
        "urgent": 85,
        "short": 115,
    }
    assert ends(replayed("1x8", *rows, order="fifo")) == {"long": 100, "short": 110, "urgent": 105}


def test_a_gang_runs_on_all_of_its_nodes_at_once() -> None:
    replay = replayed("2x8", Row("one", 0, 50, 1), Row("gang", 0, 10, 16))
    assert ends(replay) == {"one": 50, "gang": 60}


def test_impossible_jobs_are_counted_and_delay_no_other() -> None:
    for replay in (
        replayed("1x8", Row("huge", 0, 10, 9), Row("a", 1, 5, 8)),
        resorted("1x8", Row("huge", 0, 10, 9), SHORT, order="las"),
    ):
        assert replay.rejected == 1
        assert len(replay.meter.completions) == 1
        assert replay.meter.waiting == 0 and replay.meter.queued_ns == 0


def test_a_replay_is_cut_off_at_its_time() -> None:
    for replay in (
        replayed("1x8", LONG, SHORT, until=50),
        resorted("1x8", LONG, SHORT, order="fifo", until=50),
    ):
        assert ends(replay) == {}
        assert report(replay.meter)["utilisation_pct"] == {
            "while_queued": 100.0,
            "whole_run": 100.0,
        }


def test_use_is_charged_as_quota_does() -> None:
    cluster = replayed(
        "1x8", LONG, Row(name="b", submit_s=0, duration_s=1, gpus=1, tenant="red")
    ).scheduler.state.cluster
    assert (cluster.tenants[TenantId("red")].used_share_ms, cluster.uncharged) == (100 * 1_000, {})


def test_no_fact_of_a_replay_is_ignored_by_the_fold() -> None:
    assert replayed("2x8", LONG, SHORT, Row("gang", 0, 10, 16)).scheduler.state.cluster.ignored == 0


def test_least_attained_service_and_shortest_remaining_take_turns() -> None:
    assert ends(resorted("1x8", LONG, SHORT, order="srsf")) == {"short": 20, "long": 120}
    assert ends(resorted("1x8", LONG, SHORT, order="fifo")) == {"long": 100, "short": 110}


def test_shortest_remaining_time_looks_at_time_alone() -> None:
    small, large = Row("small", 0, 30, 1), Row("large", 0, 20, 8)
    assert ends(resorted("1x8", small, large, order="srtf")) == {"large": 20, "small": 50}
    assert ends(resorted("1x8", small, large, order="srsf")) == {"small": 30, "large": 50}


def test_smaller_jobs_pass_a_job_that_does_not_fit() -> None:
    rows = (Row("a", 0, 10, 3), Row("b", 0, 10, 3), Row("pair", 0, 10, 2), Row("c", 0, 10, 1))
    assert ends(resorted("2x4", *rows, order="fifo")) == {"a": 10, "b": 10, "c": 10, "pair": 20}


def test_las_places_jobs_with_little_use_first() -> None:
    hour = 3_600
    replay = resorted(
        "1x8", Row("long", 0, 100 * hour, 8), Row("new", 50 * hour, hour, 8), order="las"
    )
    assert ends(replay) == {"new": hour, "long": 101 * hour}
    assert replay.preemptions == 1


def test_going_on_costs_the_overhead_and_beginning_costs_nothing() -> None:
    replay = resorted("1x8", LONG, SHORT, order="srsf", overhead=7)
    assert ends(replay) == {"short": 20, "long": 127}
    assert (replay.preemptions, replay.migrations) == (1, 0)


def test_report_measures_two_jobs_in_a_row() -> None:
    found = report(
        replayed(
            "1x8",
            Row("a", 0, 100, 4),
            Row(name="b", submit_s=0, duration_s=20, gpus=8, tenant="red"),
        ).meter
    )
    assert found["utilisation_pct"] == {"while_queued": 50.0, "whole_run": 58.33}
    assert found["stranded_pct"] == 50.0
    assert found["queue_delay_s"]["all"] == {
        "n": 2,
        "mean": 50.0,
        "p50": 100.0,
        "p90": 100.0,
        "p99": 100.0,
    }
    assert list(found["queue_delay_s"]["by_size"]) == ["3-4", "5-8"]
    assert list(found["queue_delay_s"]["by_tenant"]) == ["default", "red"]
    assert found["jain"] == 0.5


def test_fairness_is_one_when_all_are_served_alike_and_a_part_when_one_has_all() -> None:
    meter = Meter({NodeId("n"): 400})
    for request in requests(
        [
            Row(name="a", submit_s=0, duration_s=1, gpus=4, tenant="red"),
            Row(name="b", submit_s=0, duration_s=1, gpus=4, tenant="blue"),
            Row(name="c", submit_s=0, duration_s=1, gpus=2, tenant="blue"),
        ],
        8,
    ):
        meter.wait(request)
        if request.job_id == "a":
            meter.place(request, [(NodeId("n"), 200)])
    assert meter.fairness() == 0.5
    meter.place(meter.requests[JobId("c")], [(NodeId("n"), 200)])
    assert meter.fairness() == 1.0


def test_a_meter_that_gave_away_more_than_there_is_stops() -> None:
    meter = Meter({NodeId("n"): 100})
    [request] = requests([Row("a", 0, 1, 2)], 8)
    meter.wait(request)
    with pytest.raises(AssertionError, match="gives more than it has"):
        meter.place(request, [(NodeId("n"), 200)])


def test_sizes_are_grouped_by_powers_of_two() -> None:
    assert [size_of(volume)[1] for volume in (0, 46, 100, 200, 300, 800, 1_600)] == [
        "none",
        "below 1",
        "1",
        "2",
        "3-4",
        "5-8",
        "9-16",
    ]


def test_the_lines_of_the_plots_are_means_over_time_and_parts_of_the_jobs() -> None:
    meter = replayed("1x8", Row("a", 0, 100, 4), Row("b", 100, 100, 8)).meter
    line = utilisation(meter)
    assert (line[0], line[-1]) == ((0.25, 50.0), (199.75, 100.0))
    assert completion(meter)[-1] == (100.0, 100.0)


def ask(tmp_path: Path, **words: object) -> process.Ask:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s\na,0,8,100\nb,0,8,10\n")
    return process.Ask(**{"trace": str(trace), "nodes": "1x8", "orders": ["fifo"]} | words)  # type: ignore[arg-type]


def test_the_same_question_has_the_same_answer_and_a_seed_another(tmp_path: Path) -> None:
    assert process.simulate(ask(tmp_path)) == process.simulate(ask(tmp_path))
    means = {
        seed: process.simulate(ask(tmp_path, seed=seed))["runs"][0]["completion_s"]["mean"]
        for seed in range(8)
    }
    assert set(means.values()) == {60.0, 105.0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"orders": ["srtf"]}, "--preempt has"),
        ({"orders": ["nope"], "preempt": True}, "no policy nope"),
        ({"place": "nope"}, "no placement nope"),
        ({"speed": 0.0}, "--speed"),
        ({"limits": 0.5}, "--limits"),
        ({"trace": "nope.csv"}, "no file nope.csv"),
    ],
)
def test_impossible_simulation_is_refused_before_it_starts(
    tmp_path: Path, words: dict[str, object], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        process.simulate(ask(tmp_path, **words))


def test_a_trace_is_looked_for_in_the_folder_of_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask(tmp_path)
    monkeypatch.setenv(process.TRACES, str(tmp_path))
    assert process.found("jobs.csv") == Path(asked.trace)


def test_plots_are_saved_where_matplotlib_is_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    process.simulate(ask(tmp_path, plots=str(tmp_path / "out")))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "completion.svg",
        "utilisation.svg",
    ]


def test_without_matplotlib_plots_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Refused, match="muster-gpu\\[plots\\]"):
        process.simulate(ask(tmp_path, plots=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [("--policy", "--placement"), ("--order", "--place")])
def test_policy_and_placement_are_read_by_their_names_and_their_former_names(
    names: tuple[str, str],
) -> None:
    policy, placement = names
    given = ["--trace", "t", "--nodes", "1x8", policy, "las", placement, "topology"]
    context = simulate.command.make_context("simulate", given)
    assert (context.params["order"], context.params["place"]) == ("las", "topology")
