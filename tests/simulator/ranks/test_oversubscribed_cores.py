"""Hosts of a laboratory share the cores of one machine: who computes, carries and waits there."""

import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm, Pointwise
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.simulator.machine.placement import place_ranks, spread_evenly
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import load_machine, save_machine
from tests.support.toy_laboratories import laboratory

ALONE, TOGETHER = laboratory(None, cores=4), laboratory(None)
COLUMNS = matmul_schedule(Matmul(1024, 1024, 1024), "1d-column", Grid(x=4))


def seconds(machine, schedule=COLUMNS, **given):
    return simulate(schedule, machine, **given).timeline.makespan


def own_cores(machine: Machine) -> Machine:
    return msgspec.structs.replace(machine, emulation=msgspec.structs.replace(machine.emulation, shared_cores=False))


@pytest.mark.parametrize(("cores", "times"), [(1, 4.0), (2, 2.0), (3, 3 / 2), (4, 1.0)])
def test_four_hosts_compute_as_fast_as_the_cores_that_they_share_let_them(cores, times):
    """Of four on three cores two share one until another is idle."""
    assert seconds(laboratory(None, cores=cores), threads=1) == pytest.approx(times * seconds(ALONE, threads=1))


def multiplied_by(axis, ranks=4):
    """A product on the ranks that come first along an axis; the others have nothing to do."""
    m, k, n = Part("m"), Part("k"), Part("n")
    tensors = declare(Tensor("A", m, k), Tensor("B", k, n), Tensor("C", m, n), Tensor("tiny", Part("one"), Part("one")))
    grid, sizes = Grid(x=2, y=ranks // 2), {"m": 512, "k": 512, "n": 512, "one": 1}
    works = Role((Gemm(name="multiply", a="A", b="B", c="C"),), axis, 0, 1)
    rests = Role((Pointwise(name="rest", function="zero", into="tiny"),), axis, 1, None)
    return Schedule("half", sizes, grid, "float32", tensors, ("A", "B"), ("C",), (works, rests))


@pytest.mark.parametrize("fold", [True, False])
def test_pinned_ranks_keep_to_one_core_each(fold):
    """Four ranks on two cores: the first and the third share one, the first and the second do not."""
    once = seconds(ALONE, multiplied_by("x"), threads=1)
    for axis, times in (("x", 2.0), ("y", 1.0)):
        found = seconds(TOGETHER, multiplied_by(axis), threads=1, shortcuts=Shortcuts(fold=fold))
        assert found == pytest.approx(times * once)


def test_ranks_that_cannot_be_pinned_evenly_share_all_cores():
    """Six ranks on four cores."""
    machine = laboratory(None, cores=4)
    assert seconds(machine, multiplied_by("x", 6), threads=1) == pytest.approx(
        seconds(ALONE, multiplied_by("x"), threads=1)
    )


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("idle", [0.0, 0.3, 1.0, 1.5])
def test_a_core_helps_another_when_it_has_been_idle_for_a_while(fold, idle):
    """Three ranks on two cores; `idle` in products."""
    schedule = matmul_schedule(Matmul(1024, 1024, 1536), "1d-column", Grid(x=3))
    once = seconds(laboratory(None, cores=3), schedule, threads=1)
    emulation = msgspec.structs.replace(TOGETHER.emulation, idle_core_seconds=idle * once)
    helped = msgspec.structs.replace(TOGETHER, emulation=emulation)
    found = seconds(helped, schedule, threads=1, shortcuts=Shortcuts(fold=fold))
    assert found == pytest.approx(once * min(2.0, 1.5 + idle / 2), rel=1e-3)


def on_three(ends, middle):
    """So many products one after the other on the first and the third of three ranks, and on the second."""
    m, k, n = Part("m"), Part("k"), Part("n")
    outputs = tuple("CDE"[: max(ends, middle)])
    tensors = declare(Tensor("A", m, k), Tensor("B", k, n), *(Tensor(name, m, n) for name in outputs))
    products = tuple(Gemm(name=f"into {into}", a="A", b="B", c=into) for into in outputs)
    roles = Role(products[:ends], "x", 0, 1), Role(products[:middle], "x", 1, 2), Role(products[:ends], "x", 2, None)
    sizes = {"m": 512, "k": 512, "n": 512}
    return Schedule("three", sizes, Grid(x=3), "float32", tensors, ("A", "B"), outputs, roles)


def test_a_core_that_looks_between_two_products_of_others_helps_with_the_next():
    """It is idle for a product and half of what passes between two ops: then the others are about to begin again."""
    once, issue = seconds(ALONE, on_three(1, 0), threads=1), 1e-4
    host = msgspec.structs.replace(TOGETHER.host, issue_seconds=issue)
    emulation = msgspec.structs.replace(TOGETHER.emulation, idle_core_seconds=once + issue / 2)
    found = seconds(msgspec.structs.replace(TOGETHER, host=host, emulation=emulation), on_three(2, 1), threads=1)
    assert found == pytest.approx(3 * once + issue)


def test_a_rank_that_slept_computes_where_a_core_is_idle_and_one_that_did_not_stays():
    slow = msgspec.structs.replace(
        TOGETHER, emulation=msgspec.structs.replace(TOGETHER.emulation, idle_core_seconds=1e3)
    )
    once = seconds(ALONE, on_three(2, 0), threads=1)
    assert seconds(slow, on_three(2, 0), threads=1) == pytest.approx(once), "the third woke beside an idle core"
    assert seconds(slow, on_three(2, 2), threads=1) == pytest.approx(2 * once), "it stays where it began"


def test_hosts_with_cores_of_their_own_do_not_slow_each_other():
    assert seconds(own_cores(TOGETHER), threads=1) == pytest.approx(seconds(ALONE, threads=1))


def test_a_rank_has_its_share_of_the_cores_of_all_hosts():
    ranks = place_ranks(laboratory(None, cores=8), 4)
    assert (ranks.sharing(0), ranks.neighbours(0), ranks.threads(0)) == (4, 1, 2)
    assert place_ranks(own_cores(laboratory(None, cores=8)), 4).threads(0) == 2  # packed: four ranks on the first host


@pytest.mark.parametrize(("ranks", "expected"), [(2, [0, 1]), (4, [0, 1, 2, 3]), (6, [0, 0, 1, 1, 2, 3])])
def test_ranks_live_where_a_laboratory_starts_them(ranks, expected):
    assert place_ranks(TOGETHER, ranks).of_rank.tolist() == expected
    assert spread_evenly(ranks, 4).tolist() == expected


def test_more_ranks_than_cores_are_reported_as_oversubscribed():
    assert fullest_device(TOGETHER, 4).oversubscribed and not fullest_device(ALONE, 4).oversubscribed


def written_by_all(ranks=4):
    """Each rank writes zeros: nothing but its host's memory holds it up."""
    m, n = Part("m"), Part("n")
    write = Role((Pointwise(name="write", function="zero", into="C"),), "x")
    return Schedule(
        "written", {"m": 4096, "n": 4096}, Grid(x=ranks), "float32", declare(Tensor("C", m, n)), (), ("C",), (write,)
    )


@pytest.mark.parametrize(("of_all_hosts", "times"), [(True, 4.0), (False, 1.0)])
def test_hosts_that_share_cores_share_memory_too(of_all_hosts, times):
    """One rank writes as fast as a host's memory lets it; four do so one on each host."""
    rate = ALONE.device.memory_bytes_per_second
    host = msgspec.structs.replace(ALONE.host, ranks=1, memory_bytes_per_second=rate)
    emulation = msgspec.structs.replace(ALONE.emulation, shared_cores=of_all_hosts)
    machine = msgspec.structs.replace(ALONE, host=host, emulation=emulation)
    once = seconds(machine, written_by_all(1))
    assert seconds(machine, written_by_all(4)) == pytest.approx(times * once)


def test_what_carries_messages_takes_cores_from_products_and_goes_first():
    """Carrying that takes four cores' worth goes at half its speed on two."""
    schedule = matmul_schedule(Matmul(1024, 1024, 1024), "4d", Grid(x=2, z=2))
    free, dear = (seconds(laboratory(None, cost=c), schedule) for c in (0.0, 4e-8))
    gather = 1024 * 512 * 4 / 2 / 25e6  # float32
    assert dear - free == pytest.approx(gather * (4 * 25e6 * 4e-8 / 2 - 1), rel=1e-6)


def test_a_machine_file_keeps_what_a_laboratory_is(tmp_path):
    for bursts in (7e4, {"host:0>switch:0": 7e4}, None):
        machine = laboratory(bursts, cost=2e-9)
        save_machine(machine, tmp_path / "lab.toml")
        assert load_machine(tmp_path / "lab.toml") == machine


def test_a_laboratory_is_simulated_exactly_or_not_at_all():
    assert simulate(COLUMNS, TOGETHER, granularity="auto").extent is not None
    with pytest.raises(InputError, match="lab is a laboratory"):
        simulate(COLUMNS, TOGETHER, granularity="collective")
