"""Folding over time: loops whose turns repeat are as long as if every turn had been simulated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.formats.timeline_files import load_timeline, save_timeline
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.schedule.ops import AllReduce, Barrier, Pointwise, Receive, Send
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.timelines.spans import Span
from quadrille.simulator.loops import period_detector
from quadrille.simulator.loops.period_detector import SAME, PeriodDetector, iteration_count
from quadrille.simulator.loops.restore import period_window
from quadrille.simulator.loops.skipped_iterations import (
    IterationRange,
    SkippedIterations,
    copy_counts,
    iteration_ranges,
    most_skipped,
    walk_skipping,
)
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.simulator.work_budget import BudgetExceeded
from quadrille.topologies.machines.what_if import with_faults
from tests.support.draws import examples
from tests.support.pairs import pairs
from tests.support.predictions import check_same_spans, span_key
from tests.support.toy_machines import leaf_spine, program_of, star

EVERY_TURN = Shortcuts(fold_time=False)
FEW = {"memory": 1e10, "overhead": 1e-6}
LONG = [
    ("summa", "z=2,x=2", (64, 256, 64), "training"),
    ("summa", "z=3,x=2", (50, 400, 70), "forward"),
    ("summa", "z=1,x=4", (64, 250, 60), "forward"),
    ("2.5d", "z=2,x=2,y=2", (40, 300, 40), "forward"),
]
MACHINES = {
    "star": lambda n: star(n, **FEW),
    "leaves": lambda n: leaf_spine(-(-n // 4), 4, spines=2, **FEW),
    "a slow host": lambda n: with_faults(star(n, **FEW), slow=["host:1=0.5"]),
    "a slow link": lambda n: with_faults(leaf_spine(-(-n // 4), 4, spines=2, **FEW), degrade=["leaf:0-spine:1=0.3"]),
}


def scheduled(algorithm, grid, sizes, passes, panel=4, transposed="none"):
    problem = Matmul(*sizes, "float64", passes, panel=panel, transposed=transposed)
    return matmul_schedule(problem, algorithm, parse_grid(grid))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", LONG, ids=str)
def test_the_answer_is_that_of_every_iteration(case, machine):
    """Each case on each machine, with both kinds of collectives in turns."""
    collectives = ("own", "own:doubling")[(LONG.index(case) + list(MACHINES).index(machine)) % 2]
    schedule = scheduled(*case)
    given_ = schedule, MACHINES[machine](schedule.grid.size)
    choices = parse_choices(collectives)
    short, long = (simulate(*given_, choices=choices, shortcuts=one) for one in (Shortcuts(), EVERY_TURN))
    check_same_spans(short, long)
    mine, theirs = ({load.link: (load.bytes, load.busy_s) for load in found.links} for found in (short, long))
    assert mine.keys() & theirs.keys()
    for link in mine.keys() & theirs.keys():
        assert mine[link] == pytest.approx(theirs[link], rel=1e-9)


@pytest.mark.parametrize("case", LONG[:2], ids=str)
def test_most_iterations_of_a_long_loop_are_not_simulated(case):
    schedule = scheduled(*case)
    short, long = (simulate(schedule, star(schedule.grid.size), shortcuts=s) for s in (Shortcuts(), EVERY_TURN))
    assert short.extent.iterations_skipped >= 48
    assert short.extent.events < long.extent.events / 2


@settings(max_examples=examples(24))
@given(
    z=st.integers(1, 3),
    x=st.integers(1, 3),
    long=st.integers(60, 300),
    panel=st.integers(2, 9),
    transposed=st.sampled_from(["none", "a", "b"]),
    sides=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    passes=st.sampled_from(["forward", "training"]),
    machine=st.sampled_from(sorted(MACHINES)),
)
def test_the_answer_is_the_same_for_panels_of_any_width(z, x, long, panel, transposed, sides, passes, machine):
    one, other = sides
    sizes = {"none": (one, long, other), "a": (long, one, other), "b": (one, other, long)}[transposed]
    schedule = scheduled("summa", f"z={z},x={x}", sizes, passes, panel, transposed)
    given_ = schedule, MACHINES[machine](max(4, z * x))
    check_same_spans(simulate(*given_), simulate(*given_, shortcuts=EVERY_TURN))


def test_a_timeline_of_many_ranks_says_iterations_once_and_unrolls_them_when_asked(tmp_path):
    buffer = Tensor("S", Part("m"), Part("m"))
    body = (Pointwise(name="clear", function="zero", into="S"), AllReduce(name="sum", axis="x", buffer="S"))
    role = Role((Repeat("i", 60, body), Barrier(name="meet", axis="x")))
    schedule = program_of(Grid(x=66), [buffer], roles=(role,), m=66)
    machine = star(66, **FEW)
    short, long = (simulate(schedule, machine, shortcuts=one).timeline for one in (Shortcuts(), EVERY_TURN))
    assert len(short.spans) < len(long.spans)
    assert short.makespan == pytest.approx(long.makespan, rel=1e-9)
    save_timeline(short, tmp_path / "t.json")
    assert load_timeline(tmp_path / "t.json") == short
    mine, theirs = (sorted(one.unrolled().expanded(schedule.grid).spans, key=span_key) for one in (short, long))
    assert [span_key(span) for span in mine] == [span_key(span) for span in theirs]
    assert max(abs(one.end - other.end) for one, other in zip(mine, theirs, strict=True)) < 1e-9 * long.makespan
    for name, times in long.op_times().items():
        assert short.op_times()[name].seconds == pytest.approx(times.seconds, rel=1e-9)
        assert short.op_times()[name].count == times.count


# Loops in loops, and roles


def work(name, layers, buffer="S"):
    """Layers of local work and a sum over y."""
    body = (
        Pointwise(name=f"{name} clear", function="zero", into=buffer),
        AllReduce(name=f"{name} sum", axis="y", buffer=buffer),
    )
    return (Repeat(f"{name} layer", layers, body),)


def handed_on(stage, stages, name, layers):
    """What a stage does with one microbatch: from the stage before it, to the stage after it."""
    come = (Receive(name=f"{name} from before", axis="x", sender=stage - 1, into="S"),) if stage else ()
    go = (Send(name=f"{name} to next", axis="x", to=stage + 1, source="S"),) if stage + 1 < stages else ()
    return (*come, *work(name, layers), *go)


def handed_back(stage, stages, name, layers):
    """The same in the other direction, on the axis's second lane and another buffer."""
    come, go = (), ()
    if stage + 1 < stages:
        come = (Receive(name=f"{name} from next", axis="x", lane=1, sender=stage + 1, into="D"),)
    if stage:
        go = (Send(name=f"{name} to before", axis="x", lane=1, to=stage - 1, source="D"),)
    return (*come, *work(name, layers, "D"), *go)


def filled_pipeline(stages, microbatches, layers):
    """All microbatches forwards, then all backwards."""
    roles = []
    for stage in range(stages):
        there, back = (way(stage, stages, name, layers) for way, name in ((handed_on, "f"), (handed_back, "b")))
        program = (Repeat("forward", microbatches, there), Repeat("backward", microbatches, back))
        roles.append(Role(in_sequence(program), axis="x", start=stage, stop=stage + 1))
    return pipeline_of(roles, stages)


def alternating_pipeline(stages, microbatches, layers):
    """One forwards, one backwards, after as many forwards as there are stages to come."""
    roles = []
    for stage in range(stages):
        ahead = stages - 1 - stage
        steady = (*handed_on(stage, stages, "f", layers), *handed_back(stage, stages, "b", layers))
        program = (
            Repeat("ahead", ahead, handed_on(stage, stages, "first", layers)),
            Repeat("steady", microbatches - ahead, steady),
            Repeat("behind", ahead, handed_back(stage, stages, "last", layers)),
        )
        roles.append(Role(program, axis="x", start=stage, stop=stage + 1))
    return pipeline_of(roles, stages)


def pipeline_of(roles, stages):
    return program_of(
        Grid(x=stages, y=2), [Tensor(name, Part("m"), Part("m")) for name in "SD"], roles=tuple(roles), m=66
    )


def few_long_turns(layers):
    """Four turns of one loop, each with a long loop of its own in it."""
    body = (*work("a", layers), Barrier(name="meet", axis="y"), *work("b", layers))
    return program_of(Grid(y=3), [Tensor("S", Part("m"), Part("m"))], roles=(Role((Repeat("i", 4, body),)),), m=66)


NESTED = {
    "a filled pipeline": (filled_pipeline(3, 60, 2), 40),
    "one forwards, one backwards": (alternating_pipeline(2, 62, 2), 48),
    "no rhythm": (alternating_pipeline(3, 40, 2), 0),
    "loops in each of a few turns": (few_long_turns(50), 340),
}


@pytest.mark.parametrize(
    ("case", "machine", "fold"), pairs(list(NESTED), ["star", "leaves", "a slow host"], [True, False])
)
def test_the_answer_is_that_of_every_iteration_in_nested_loops_and_roles(case, machine, fold):
    schedule, skipped = NESTED[case]
    given_ = schedule, MACHINES[machine](schedule.grid.size)
    short = simulate(*given_, shortcuts=Shortcuts(fold=fold))
    check_same_spans(short, simulate(*given_, shortcuts=Shortcuts(fold=fold, fold_time=False)))
    if machine == "star":
        assert short.extent.iterations_skipped == skipped


# Parts


def test_only_long_iteration_ranges_are_shortened_and_by_a_multiple_of_two_iterations():
    assert iteration_ranges({"i#0": [1] * 11 + [2] * 41}) == [IterationRange("i#0", 11, 52, 2)]
    assert iteration_ranges({"i#0": [1] * 40}, {"i": [2, 5, 40]}) == [IterationRange("i#0", 0, 40, 5)]
    assert most_skipped(IterationRange("i#0", 11, 52, 2)) == SkippedIterations("i#0", 11, 16, 50, 52)


def test_as_many_iterations_are_simulated_after_skipped_ones_as_there_are_alternating_copies():
    tensors = [
        Tensor("S", Part("m"), Part("m"), copies=(("j", 3), ("i", 60))),
        Tensor("T", Part("m"), Part("m"), copies=(("j", Affine("pipeline", -1, 4)),)),
    ]
    clear = Pointwise(name="clear", function="zero", into="S")
    body = (Repeat("j", 1, (clear,), first=Affine("i")),)
    schedule = program_of(Grid(pipeline=3), tensors, roles=(Role((Repeat("i", 60, body),)),), m=6)
    found = copy_counts(schedule)
    assert found == {"i": [2, 3, 4, 60], "j": [2, 3, 4]}
    assert iteration_ranges({"i#0": [1] * 60}, found) == [IterationRange("i#0", 0, 60, 4)]


def test_iterations_that_are_skipped_are_passed_over():
    schedule = scheduled("summa", "z=1,x=2", (4, 80, 4), "forward")
    place = schedule.coordinates(0)
    program = schedule.program(place)
    numbers = [
        turn[1]
        for _, _, turn in walk_skipping(program, place, [SkippedIterations(f"{program[1].loop}#0", 0, 3, 18, 20)])
        if turn
    ]
    assert sorted(set(numbers)) == [0, 1, 2, 3, 4]


def spans_of(turns, ranks=1, drift=0.0):
    """One op a turn, a second each; ranks begin `drift` seconds after each other."""
    found = [
        Span(
            rank,
            "op",
            "gemm",
            "compute",
            turn + rank * drift,
            turn + rank * drift,
            0.0,
            turn + 1 + rank * drift,
            index=turn,
        )
        for rank in range(ranks)
        for turn in range(turns)
    ]
    return found, [("i#0", span.index) for span in found]


def test_a_period_is_found_where_all_iterations_are_equal():
    found = period_window(SkippedIterations("i#0", 0, 6, 54, 56), *spans_of(8))
    assert (found.seconds, found.iterations, found.periods) == (pytest.approx(1.0), 1, 48)


def of_many_ops(turns, ops, seconds, slower=0.0):
    """Turns of many ops one after the other, each rounded to the clock as it ends; `slower` by so much every turn."""
    found, now = [], 2.0 - 4.5 * ops * seconds
    for turn in range(turns):
        for op in range(ops):
            end = now + seconds * (1 + slower * turn)
            found.append(Span(0, f"op {op}", "gemm", "compute", now, now, 0.0, end, index=turn))
            now = end
    return found, [("i#0", span.index) for span in found]


def test_an_iteration_of_many_ops_is_the_same_though_each_is_rounded_to_a_clock_that_grows():
    skipped, ops, seconds = SkippedIterations("i#0", 0, 6, 54, 56), 1000, 3.1e-6
    clocks = np.array([span.end for span in of_many_ops(8, ops, seconds)[0]]).reshape(8, ops)
    assert np.ptp(np.diff(clocks[:, -1])) > 2 * SAME * ops * seconds  # rounded otherwise above 2 s than below
    assert period_window(skipped, *of_many_ops(8, ops, seconds)).iterations == 1
    assert period_window(skipped, *of_many_ops(8, ops, seconds, slower=1e-9)) is None


def test_ranks_that_drift_apart_for_longer_than_the_window_have_no_period():
    assert period_window(SkippedIterations("i#0", 0, 6, 54, 56), *spans_of(8, ranks=2, drift=1.0)) is not None
    assert period_window(SkippedIterations("i#0", 0, 6, 54, 56), *spans_of(8, ranks=8, drift=1.0)) is None


def test_something_else_running_breaks_the_period():
    spans, turns = spans_of(8)
    other = Span(0, "else", "all_reduce", "z", 2.0, 2.0, 2.0, 7.0)
    assert period_window(SkippedIterations("i#0", 0, 6, 54, 56), [*spans, other], [*turns, None]) is None


def test_the_period_is_looked_for_where_nothing_else_is_running():
    spans, turns = spans_of(9)
    others = [Span(0, "else", "all_reduce", "z", *times) for times in ((0.0, 0.0, 0.0, 2.5), (6.5, 6.5, 6.5, 7.0))]
    found = period_window(SkippedIterations("i#0", 0, 7, 54, 56), [*spans, *others], [*turns, None, None])
    assert (found.begin, found.end) == (2.5, 6.5)
    assert found.begin <= found.cut <= found.end


def test_an_iteration_that_is_slower_breaks_the_period():
    spans, turns = spans_of(8)
    spans[4] = Span(0, "op", "gemm", "compute", 4.0, 4.0, 0.0, 4.5, index=4)
    assert period_window(SkippedIterations("i#0", 0, 6, 54, 56), spans, turns) is None


# Gaps that are decided while the simulation runs


def watched(detector, turns, seconds, *, ranks=1):
    """Walks a loop of one op, the op of each turn as long as `seconds` says; the turns that were walked."""
    clear = Pointwise(name="clear", function="zero", into="S")
    program, place = (
        (Repeat("i", turns, (clear,)),),
        scheduled("summa", "z=1,x=2", (4, 80, 4), "forward").coordinates(0),
    )
    walks, now, walked = [detector.walk(program, place) for _ in range(ranks)], 0.0, []
    for number in range(turns):
        for rank, walk in enumerate(walks):
            found = next(walk, None)
            if found is None:
                return walked
            _, moment, turn = found
            detector.op_began(turn)
            detector.op_ended(turn, (rank, "clear", number, now, now, now + seconds(number)))
        walked.append(moment.indices["i"])
        now += seconds(number)
    return walked


def test_iterations_are_skipped_as_soon_as_those_so_far_are_periodic():
    detector = PeriodDetector([IterationRange("i#0", 0, 60, 2)], lambda _: 1)
    walked = watched(detector, 60, lambda number: 1.0 if number > 9 else 2.0 + number)
    (skipped,) = detector.skipped
    assert walked == [*range(skipped.skip_start), *range(skipped.skip_stop, 60)]
    assert 12 <= skipped.skip_start <= 15
    assert (skipped.skip_stop, skipped.stop) == (58, 60)


def test_iterations_without_a_period_are_all_walked():
    detector = PeriodDetector([IterationRange("i#0", 0, 60, 2)], lambda _: 1)
    assert watched(detector, 60, lambda number: 1.0 + 1e-6 * number**2) == list(range(60))
    assert detector.skipped == []


def test_the_search_for_a_period_ends_after_many_iterations_where_nobody_waits_for_it():
    detector = PeriodDetector([IterationRange("i#0", 0, 60, 2)], lambda _: 1, patient=False)
    with pytest.raises(BudgetExceeded):
        watched(detector, 60, lambda number: 1.0 + 1e-6 * number**2)
    hasty = PeriodDetector([IterationRange("i#0", 0, 60, 2)], lambda _: 1, patient=False)
    assert len(watched(hasty, 60, lambda _: 1.0)) < 20
    short = PeriodDetector([IterationRange("i#0", 0, 40, 2)], lambda _: 1, patient=False)
    assert watched(short, 40, lambda number: 1.0 + 1e-6 * number**2) == list(range(40))


def test_nothing_is_skipped_while_something_else_is_running():
    detector = PeriodDetector([IterationRange("i#0", 0, 60, 2)], lambda _: 1)
    detector.op_began(None)
    assert watched(detector, 60, lambda _: 1.0) == list(range(60))


def test_iterations_count_once_they_have_ended_on_all_ranks():
    detector = PeriodDetector([IterationRange("i#0", 0, 60, 2)], lambda _: 3)
    assert watched(detector, 60, lambda _: 1.0, ranks=2) == list(range(60))
    detector = PeriodDetector([IterationRange("i#0", 0, 60, 2)], lambda _: 2)
    assert len(watched(detector, 60, lambda _: 1.0, ranks=2)) < 20


def test_a_rank_has_the_loops_of_its_own_program():
    schedule = alternating_pipeline(3, 40, 2)
    first, last = (schedule.coordinates(schedule.grid.stride("x") * stage) for stage in (0, 2))
    assert iteration_count(schedule.program(first), first, "steady#0[3]/f layer#0") == 2
    assert (
        iteration_count(schedule.program(first), first, "steady#0"),
        iteration_count(schedule.program(last), last, "steady#0"),
    ) == (38, 40)
    assert iteration_count(schedule.program(last), last, "ahead#0[0]/first layer#0") == 0


def test_a_wrong_guess_costs_another_attempt_and_changes_no_answer(monkeypatch):
    schedule = alternating_pipeline(3, 40, 2)
    given_ = schedule, MACHINES["star"](schedule.grid.size)
    guesses = []

    def always(*_):
        guesses.append(None)
        return True

    monkeypatch.setattr(period_detector, "_is_periodic", always)
    guessed = simulate(*given_)
    assert guesses
    assert guessed.extent.iterations_skipped == 0
    check_same_spans(guessed, simulate(*given_, shortcuts=EVERY_TURN))
