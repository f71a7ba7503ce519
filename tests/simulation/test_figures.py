"""What the recorder makes of a run, on runs small enough to be reckoned by hand."""

from __future__ import annotations

import msgspec
import pytest

from notebookos_ext.cluster.options import Options
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.cost import Prices, study
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.distributions import Lognormal, percentile
from notebookos_ext.simulation.experiment import Outcome, run_plan
from notebookos_ext.simulation.faults import Faults
from notebookos_ext.simulation.figures import times
from notebookos_ext.simulation.machines import HostShape
from notebookos_ext.simulation.measures import Steps
from notebookos_ext.simulation.plans import Plan
from notebookos_ext.simulation.workload import PlannedCell, PlannedSession, Workload

EXACT = Delays(
    commit_s=Lognormal(0.0, 0.0, min=0.1, max=0.1),
    store_rate_spread=1e-9,
    checkpoint_bytes=(1_000_000_000,),
    to_device_bytes_per_s=10e9,
    to_host_bytes_per_s=10e9,
    store_upload_bytes_per_s=1e9,
    store_download_bytes_per_s=1e9,
)
FIXED = Plan(replica_count=1, hosts_min=1, hosts_max=1, delays=EXACT, options=Options())
# What a first GPU cell pays before its code runs.
FIRST_S = EXACT.message_s + 0.1 + 0.1 + EXACT.cuda_init_s


def one_host(*sessions: PlannedSession, horizon_s: float = 7200.0) -> Outcome:
    return run_plan(Workload("w", horizon_s, sessions), FIXED)


def session(name: str, *cells: PlannedCell, gpus: int = 8) -> PlannedSession:
    return PlannedSession(name, 0.0, 7200.0, gpus, cells)


def test_one_cell() -> None:
    outcome = one_host(session("a", PlannedCell(600.0, 900.0, 4), gpus=4))
    figures = outcome.figures
    assert figures.provisioned_gpu_h == 8 * 2
    assert figures.used_gpu_h == pytest.approx(4 * (900 + 0.1) / 3600)
    release_s = EXACT.release_s + 0.1
    assert figures.committed_gpu_h == pytest.approx(4 * (FIRST_S + 900.1 + release_s) / 3600)
    assert figures.wait.max_s == pytest.approx(FIRST_S)
    assert figures.completion.max_s == pytest.approx(FIRST_S + 900.1)
    assert figures.at_once.share == 1.0
    # Reserved 4 GPUs for two hours, used them for a quarter of one, paid for 8 for two.
    assert figures.saved_gpu_h == pytest.approx(8 - 16)
    assert figures.saved_share == pytest.approx(-8 / 7)
    assert figures.subscription_ratio == pytest.approx(0.5)


def test_a_cell_that_has_to_wait_defers_work_and_is_not_at_once() -> None:
    """Two cells of an hour want the same 8 GPUs at once; half of the second is done in time."""
    outcome = one_host(
        session("a", PlannedCell(600.0, 3600.0, 8)),
        session("b", PlannedCell(601.0, 3600.0, 8)),
    )
    figures = outcome.figures
    assert figures.at_once_by_gpus[8].share == 0.5
    assert figures.wait.max_s == pytest.approx(3600, abs=5)
    assert figures.deferred_gpu_h == pytest.approx(8 * 600 / 3600, rel=0.01)
    assert figures.saved_gpu_h == pytest.approx(32 - 16 - figures.deferred_gpu_h)
    assert figures.unfinished_cells == 0


def test_the_next_cell_comes_a_think_time_after_the_end_of_the_one_before() -> None:
    outcome = one_host(
        session("a", PlannedCell(600.0, 100.0, 8, 50.0), PlannedCell(750.0, 10.0, 8)),
    )
    first, second = outcome.run.recorder.cells
    assert first.ended_s is not None
    assert second.submitted_s == pytest.approx(first.ended_s + 50.0)
    assert second.same_executor
    # The same process on the same GPUs: neither CUDA nor other devices to set up.
    assert second.wait_s == pytest.approx(FIRST_S - EXACT.cuda_init_s)


def test_a_lost_executor_is_seen_and_its_cell_submitted_again() -> None:
    long = Workload("w", 7200.0, (session("a", PlannedCell(600.0, 300.0, 8)),))
    lost = 0
    for seed in range(20):
        crashes = Faults(replica_crashes_per_day=200.0)
        outcome = run_plan(long, msgspec.structs.replace(FIXED, faults=crashes, seed=seed))
        assert outcome.figures.outcomes["done"] == 1
        assert outcome.run.unfinished_cells == 0
        again = outcome.figures.counts.get("submitted again", 0)
        assert again == outcome.figures.outcomes.get("lost", 0)
        lost += again
    assert lost > 3


def test_a_workload_that_no_host_can_run_is_refused() -> None:
    workload = Workload("w", 9.0, (session("a", PlannedCell(1.0, 1.0, 16)),))
    with pytest.raises(InvalidRequest, match="use larger hosts"):
        run_plan(workload, FIXED)


def test_a_session_that_asks_for_more_cores_than_a_host_has_is_refused() -> None:
    large = msgspec.structs.replace(session("a", PlannedCell(1.0, 1.0, 1)), cpus=65.0)
    with pytest.raises(InvalidRequest, match="asks for 65 cores"):
        run_plan(Workload("w", 9.0, (large,)), FIXED)
    hungry = msgspec.structs.replace(large, cpus=1.0, memory_bytes=10**12)
    with pytest.raises(InvalidRequest, match="1000 GB"):
        run_plan(Workload("w", 9.0, (hungry,)), FIXED)


def test_a_workload_without_gpus_costs_nobody_anything_but_hosts() -> None:
    outcome = one_host(msgspec.structs.replace(session("a", PlannedCell(600.0, 100.0, 0)), gpus=0))
    found = outcome.cost(Prices())
    assert found.reservation.provider == found.reservation.users == 0
    assert found.provider_saving_share == found.users_saving_share == 0


def test_a_kernel_that_is_rejected_leaves_its_cells_unfinished() -> None:
    plan = msgspec.structs.replace(FIXED, replica_count=2)
    workload = Workload("w", 900.0, (session("a", PlannedCell(1.0, 1.0, 1)),))
    outcome = run_plan(workload, plan)
    assert outcome.figures.counts["kernels rejected"] == 1
    (problem,) = outcome.run.problems
    assert problem.startswith("1 sessions got no kernel: ")
    assert outcome.figures.unfinished_cells == 1


def test_steps_are_integrated_up_to_any_time() -> None:
    steps = Steps()
    steps.add(10.0, 4)
    steps.add(20.0, -1)
    steps.set(20.0, 2)
    steps.set(30.0, 0)
    assert [steps.integral(t) for t in (0.0, 10.0, 15.0, 20.0, 25.0, 30.0, 99.0)] == [
        0,
        0,
        20,
        40,
        50,
        60,
        60,
    ]
    assert max(steps.values) == 4


def test_percentiles_interpolate() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([1.0, 3.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 9.0], 1.0) == 9.0
    assert times([]).max_s == 0.0


def test_costs_are_reckoned_from_prices() -> None:
    figures = one_host(session("a", PlannedCell(600.0, 900.0, 4), gpus=4)).figures
    prices = Prices(
        provider_per_gpu_h=1.0,
        reserved_per_gpu_h=2.0,
        bound_per_gpu_h=3.0,
        standby_per_replica_h=1.0,
    )
    found = study(figures, 2.0, prices, replica_count=3, reserved=False)
    assert (found.reservation.provider, found.reservation.users) == (8.0, 16.0)
    assert found.policy.provider == pytest.approx(16.0)
    assert found.policy.users == pytest.approx(3 * figures.committed_gpu_h + 2 * 2.0)
    assert found.provider_saving_share == pytest.approx(-1.0)
    reserved = study(figures, 2.0, prices, replica_count=1, reserved=True)
    assert reserved.policy.users == reserved.reservation.users
    with pytest.raises(InvalidRequest, match="price bound_per_gpu_h"):
        study(figures, 2.0, Prices(bound_per_gpu_h=-1), replica_count=3, reserved=False)


def test_hosts_are_paid_for_from_their_request() -> None:
    """The second kernel of three replicas needs hosts that have to boot."""
    plan = msgspec.structs.replace(
        FIXED, replica_count=3, hosts_min=1, hosts_max=3, shape=HostShape(gpus=4)
    )
    workload = Workload("w", 3600.0, (session("a", PlannedCell(900.0, 10.0, 4), gpus=4),))
    outcome = run_plan(workload, plan)
    assert outcome.figures.provisioned_gpu_h == pytest.approx(4 * 3)
    assert outcome.figures.counts["hosts added"] == 3
