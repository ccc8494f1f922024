"""Every MPI case: what it runs, on how many ranks, and, run as a program on 12 ranks, whether it came out right.

The world is split in rounds into groups of 1, 2, 3, … ranks, several at once;
each group takes its share of the cases of its size.  Operands are whole
numbers, so every product is exact and the blocks must agree bit for bit.  Rank 0
prints one JSON line a case: {"case": …, "wrong": null or what is}.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import prod

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import algorithms, find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap, parse_overlap
from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Grid
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gemm,
    HostCopy,
    Pointwise,
    Receive,
    Reduce,
    Send,
    Shift,
)
from quadrille.algorithms.schedule.parts import Panel, Part
from quadrille.algorithms.schedule.program import Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES, MessageOptions
from tests.support.products import products, shapes

WORLD = 12
ROUNDS = ((1,) * 12, (2,) * 6, (3,) * 4, (4,) * 3, (6,) * 2, (5, 7), (8, 4), (9, 3), (10, 2), (11, 1), (12,))
MODES = ("own:ring", "own:doubling", "own:halving_doubling", "own:double_binary_tree", "own:hierarchical", "library")
ALL_OVERLAPS = "oar,ors,oag"
PLENTY = 1 << 30
FEW = 64
"""Bytes of the longest message where messages are to be split: eight numbers."""
CASE_SECONDS = 60.0
SMALL_GROUP = 4
"""Ranks up to which chunks and threads are tried: each takes a turn on the cores."""
IN_CHUNKS = MessageOptions(chunk_bytes=40, poll_sleep_seconds=1e-4, progress="thread")
OWN_ONLY = (10, 11)
"""Numbers of ranks that run our own schedules only: products on 6, 7 and 12 ranks have the same kinds of grids."""
SIZES = {"m": 13, "k": 17, "l": 5, "n": 11}


@dataclass(frozen=True, slots=True)
class Case:
    """One schedule run once, on a group of `ranks` ranks, which alone make it: its whole inputs and outputs too."""

    name: str
    ranks: int
    make: Callable[[], tuple[Schedule, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]
    collectives: str
    max_message_bytes: int = PLENTY
    repeats: int = 1
    message_options: MessageOptions = WHOLE_MESSAGES


# Schedules of our own, for the ops that no product uses


def pipeline(ranks):
    """Y = A W … W V, the rows in windows of three, each stage on one coordinate of x."""
    panel = Panel("m", 3, (), loop="i")
    rows, window, width = Part("m"), Part("m", panel=panel), Part("l")
    tensors = declare(
        Tensor("A", rows, Part("k"), held_at=("x", 0)),
        Tensor("U", Part("k"), width, held_at=("x", 0)),
        Tensor("W", width, width),
        Tensor("V", width, Part("n"), held_at=("x", ranks - 1)),
        Tensor("A rows", window, Part("k")),
        Tensor("in", window, width, copies=(("i", 2),)),
        Tensor("out", window, width, copies=(("i", 2),)),
        Tensor("Y rows", window, Part("n")),
        Tensor("Y", rows, Part("n"), held_at=("x", ranks - 1)),
    )
    take = Broadcast(name="take", axis="z", root=0, source="A", into="A rows")
    send = Send(name="send", axis="x", to=Affine("x", 1, offset=1), source="out")
    receive = Receive(name="receive", axis="x", sender=Affine("x", 1, offset=-1), into="in")
    first = (take, Gemm(name="first", a="A rows", b="U", c="out"), send)
    middle = (receive, Gemm(name="middle", a="in", b="W", c="out"), send)
    put = Reduce(name="put", axis="z", root=0, source="Y rows", into="Y")
    last = (receive, Gemm(name="last", a="in", b="V", c="Y rows"), put)
    roles = (
        Role((Repeat("i", panel, first),), "x", 0, 1),
        Role((Repeat("i", panel, last),), "x", ranks - 1),
        Role((Repeat("i", panel, middle),), "x", 1, ranks - 1),
    )
    return Schedule("pipeline", SIZES, Grid(x=ranks), "float64", tensors, ("A", "U", "W", "V"), ("Y",), roles)


def exchange(ranks):
    """A schedule that turns A from cut by rows to cut by columns, and back."""
    tensors = declare(
        Tensor("A", Part("m", ("x",)), Part("n")),
        Tensor("turned", Part("m"), Part("n", ("x",))),
        Tensor("back", Part("m", ("x",)), Part("n")),
    )
    program = (
        AllToAll(name="turn", axis="x", source="A", into="turned"),
        AllToAll(name="turn back", axis="x", source="turned", into="back"),
    )
    return Schedule("exchange", SIZES, Grid(x=ranks), "float64", tensors, ("A",), ("turned", "back"), (Role(program),))


def shifts(ranks):
    """A schedule that gives every rank all of A by shifts over growing distances."""
    turning = Part("m", ("z",), rotated_by=("t",))
    tensors = declare(
        Tensor("A", Part("m", ("z",)), Part("k")),
        Tensor("A turned", turning, Part("k"), copies=(("t", 2),)),
        Tensor("whole", Part("m"), Part("k")),
    )
    body = (
        Shift(name="shift", axis="z", distance=Affine("t", -1), source="A", into="A turned"),
        Reduce(name="put", axis="x", root=0, source="A turned", into="whole"),
    )
    roles = (Role((Pointwise(name="zero", function="zero", into="whole"), Repeat("t", ranks, body))),)
    return Schedule("shifts", SIZES, Grid(z=ranks), "float64", tensors, ("A",), ("whole",), roles)


def lanes(ranks):
    """A + B, both gathered at once on two lanes of one axis, moved to the host and back, and copied."""
    names = ("A whole", "B whole", "sum", "there", "here", "D")
    whole = {name: Tensor(name, Part("m"), Part("k"), on_host=name == "there") for name in names}
    part = {name: Tensor(name, Part("m", ("y",)), Part("k")) for name in ("A", "B")}
    program = (
        AllGather(name="gather A", axis="y", source="A", into="A whole", concurrent=True),
        AllGather(name="gather B", axis="y", lane=1, source="B", into="B whole", concurrent=True),
        Pointwise(name="add", function="add", into="sum", sources=("A whole", "B whole")),
        Barrier(name="meet", axis="y", after=("add",)),
        HostCopy(name="down", source="sum", into="there", to_host=True, after=("meet",)),
        HostCopy(name="up", source="there", into="here"),
        Pointwise(name="copy", function="copy", into="D", sources=("here",)),
    )
    return Schedule("lanes", SIZES, Grid(y=ranks), "float64", part | whole, ("A", "B"), ("D",), (Role(program),))


def bucket(ranks):
    """A U and A V, both summed in the same messages."""
    tensors = declare(
        Tensor("A", Part("m"), Part("k", ("y",))),
        Tensor("U", Part("k", ("y",)), Part("l")),
        Tensor("V", Part("k", ("y",)), Part("n")),
        Tensor("AU", Part("m"), Part("l")),
        Tensor("AV", Part("m"), Part("n")),
    )
    program = (
        Gemm(name="multiply AU", a="A", b="U", c="AU"),
        Gemm(name="multiply AV", a="A", b="V", c="AV"),
        AllReduce(name="sum both", axis="y", buffer="AU", more=("AV",)),
    )
    roles = (Role(in_sequence(program)),)
    return Schedule("bucket", SIZES, Grid(y=ranks), "float64", tensors, ("A", "U", "V"), ("AU", "AV"), roles)


def custom(build, ranks):
    """A schedule of our own, whole inputs and whole expected outputs."""
    schedule = build(ranks)
    inputs = {
        name: whole_numbers(seed, *(SIZES[part.dimension] for part in (tensor.rows, tensor.columns)))
        for seed, name in enumerate(schedule.inputs)
        for tensor in [schedule.tensors[name]]
    }
    a = inputs["A"]
    match build.__name__:
        case "pipeline":
            middle = np.linalg.matrix_power(inputs["W"].astype(np.int64), ranks - 2)
            return schedule, inputs, {"Y": a @ inputs["U"] @ middle @ inputs["V"]}
        case "exchange":
            return schedule, inputs, {"turned": a, "back": a}
        case "shifts":
            return schedule, inputs, {"whole": a}
        case "lanes":
            return schedule, inputs, {"D": a + inputs["B"]}
        case "bucket":
            return schedule, inputs, {"AU": a @ inputs["U"], "AV": a @ inputs["V"]}
    raise AssertionError(build)


CUSTOM = (pipeline, exchange, shifts, lanes, bucket)


def whole_numbers(seed, rows, columns, dtype="float64"):
    return np.random.default_rng(seed).integers(-4, 5, (rows, columns)).astype(dtype)


# Products


def chosen_grids(ranks):
    """Each algorithm on at most four of the grids of `ranks` ranks that it accepts; at least 4d accepts one."""
    chosen = []
    for algorithm in algorithms():
        grids = [Grid(**lengths) for lengths in factorisations(ranks, algorithm.axes)]
        accepted = [grid for grid in grids if accepts(algorithm, grid)]
        if accepted:
            numbers = sorted({round(i * (len(accepted) - 1) / 3) for i in range(4)})
            chosen += [(algorithm.name, accepted[number]) for number in numbers]
    assert "4d" in dict(chosen)
    return chosen


def factorisations(ranks, axes):
    for lengths in product(range(1, ranks + 1), repeat=len(axes)):
        if prod(lengths) == ranks:
            yield dict(zip(axes, lengths, strict=True))


def accepts(algorithm, grid):
    try:
        algorithm.check(grid)
    except InputError:
        return False
    return True


@lru_cache(16)
def product_of(problem, algorithm, grid, overlaps):
    """The schedule, whole inputs and whole expected outputs; cases in a row differ in their collectives only."""
    schedule = overlap(matmul_schedule(problem, algorithm, grid), parse_overlap(overlaps))
    inputs = {name: whole_numbers(i, *shapes(problem)[name], problem.dtype) for i, name in enumerate(problem.inputs)}
    return schedule, inputs, products(problem, inputs)


def product_case(
    problem,
    algorithm,
    grid,
    collectives,
    overlaps="none",
    max_message_bytes=PLENTY,
    repeats=1,
    message_options=WHOLE_MESSAGES,
):
    words = [algorithm, str(grid), problem.passes, f"{problem.m},{problem.k},{problem.n}", collectives]
    words += [f"transposed {problem.transposed}"] * (problem.transposed != "none")
    words += [f"order {','.join(grid.order)}"] * (grid.order != DEFAULT_ORDER)
    words += [overlaps] * (overlaps != "none") + [f"messages of {max_message_bytes}"] * (max_message_bytes < PLENTY)
    words += [f"in chunks, progress {message_options.progress}"] * (message_options != WHOLE_MESSAGES)
    make = partial(product_of, problem, algorithm, grid, overlaps)
    return Case(" ".join(words), grid.size, make, collectives, max_message_bytes, repeats, message_options)


def product_cases(ranks):
    training, forward = Matmul(13, 17, 11, "float32", "training", panel=5), Matmul(13, 17, 11, "float64", panel=4)
    for number, (algorithm, grid) in enumerate(chosen_grids(ranks)):
        plain, overlapped = modes_in_turns(ranks, number)
        for collectives in plain:
            yield product_case(training, algorithm, grid, collectives)
        for collectives in overlapped if algorithm in ("3d", "4d") else ():
            yield product_case(training, algorithm, grid, collectives, ALL_OVERLAPS)
        yield product_case(forward, algorithm, grid, "own:ring", max_message_bytes=FEW, repeats=2)
        yield product_case(forward, algorithm, grid, "library")
        overlaps = ALL_OVERLAPS if algorithm in ("3d", "4d") else "none"
        yield product_case(training, algorithm, grid, "library", overlaps, max_message_bytes=FEW)
        if ranks <= SMALL_GROUP:
            yield product_case(training, algorithm, grid, "own:ring", overlaps, repeats=2, message_options=IN_CHUNKS)
        turned = replace(grid, order=("z", "data", "x", "y"))
        yield product_case(replace(training, gathered="keep"), algorithm, turned, "own:ring")
        forms = ("a", "b") if ranks <= SMALL_GROUP else ("ab"[number % 2],)
        for transposed in forms if find_algorithm(algorithm).any_form else ():
            yield product_case(replace(training, transposed=transposed), algorithm, grid, "own:ring", overlaps)
    for algorithm, grid in (("4d", Grid(z=ranks)), ("3d", Grid(y=ranks)), ("summa", Grid(x=ranks))):
        yield product_case(Matmul(2, 3, 1, "float32", "training"), algorithm, grid, "library", ALL_OVERLAPS)


def modes_in_turns(ranks, number):
    """Modes of a product without and with overlap: all in small groups; in larger groups the grids take turns."""
    if ranks <= SMALL_GROUP:
        return MODES, MODES
    ring, *others, library = MODES
    first, second = others[number % len(others)], others[(number + 2) % len(others)]
    return (ring, first, library), ((library, ring)[number % 2], second)


def custom_cases(ranks):
    for build in CUSTOM:
        if build is pipeline and ranks < 2:
            continue
        for collectives, max_message_bytes in product(("own:ring", "library"), (PLENTY, 600, FEW)):
            words = f"{build.__name__} of {ranks} {collectives} messages of {max_message_bytes}"
            yield Case(words, ranks, partial(custom, build, ranks), collectives, max_message_bytes, repeats=2)


@lru_cache
def cases(ranks):
    """All cases on groups of `ranks` ranks, each name once."""
    products = () if ranks in OWN_ONLY else product_cases(ranks)
    return list({case.name: case for case in (*custom_cases(ranks), *products)}.values())


def names():
    """The names of all cases of all sizes."""
    return [case.name for ranks in sorted({size for sizes in ROUNDS for size in sizes}) for case in cases(ranks)]


def shares():
    """Group by group of each round: its first rank, its size and the cases that fall to it."""
    groups = [(number, size) for number, sizes in enumerate(ROUNDS) for size in sizes]
    total = {size: sum(other == size for _, other in groups) for _, size in groups}
    taken = dict.fromkeys(total, 0)
    rounds = [[] for _ in ROUNDS]
    for number, size in groups:
        first = sum(other for _, other, _ in rounds[number])
        rounds[number].append((first, size, cases(size)[taken[size] :: total[size]]))
        taken[size] += 1
    return rounds


# The program of the ranks


class Watch:
    """Ends this rank and names the case if a case takes too long, so that a hang does not outlast the test."""

    def __init__(self, case_seconds):
        self.case_seconds = case_seconds
        self.case, self.since = "the start", time.monotonic()
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self, case):
        self.case, self.since = case, time.monotonic()

    def _look(self):
        while self.case is None or time.monotonic() - self.since < self.case_seconds:
            time.sleep(0.5)
        print(f"hangs: {self.case}", file=sys.stderr, flush=True)
        os._exit(1)


def carry_out(case, carrier, group):
    """On the first rank of the group, the fault of the case on any rank; None on other ranks."""
    from quadrille.algorithms.analysis.volumes import bytes_sent
    from quadrille.runtime.execution.execute import execute
    from quadrille.runtime.operands.input_sources import WholeMatrices

    schedule, inputs, outputs = case.make()
    choices = parse_choices(case.collectives)
    execution = execute(
        schedule, inputs, carrier, repeats=case.repeats, choices=choices, progress=case.message_options.progress
    )
    wrong = []
    for name, whole in outputs.items():
        block = schedule.tensors[name].block(schedule.coordinates(carrier.rank))
        expected = WholeMatrices({name: whole}).stored(name, block)
        found = execution.outputs[carrier.rank][name]
        if found.dtype != expected.dtype or not np.array_equal(found, expected):
            wrong.append(f"{name} of rank {carrier.rank} differs")
    expected_bytes = bytes_sent(schedule, carrier.rank, choices)
    gathered = group.gather((wrong, expected_bytes))
    if gathered is None:
        return None
    wrong = [word for words, _ in gathered for word in words]
    counted = [execution.bytes_sent[rank] for rank in range(case.ranks)]
    predicted = [count for _, count in gathered]
    wrong += [f"bytes sent {counted}, predicted {predicted}"] * (counted != predicted)
    wrong += ["timelines missing"] * (len(execution.timelines) != case.repeats)
    return "; ".join(wrong)


def play_round(groups, world, watch):
    """On the first rank of a group, the results of the group."""
    from quadrille.runtime.carriers.mpi import MpiCarrier

    mine = max(i for i, (first, _, _) in enumerate(groups) if first <= world.rank)
    _, size, share = groups[mine]
    within = world.rank < groups[mine][0] + size
    group = world.Split(mine if within else len(groups))
    results = []
    carriers = {}
    for case in share if within else []:
        watch.begin(case.name)
        key = case.max_message_bytes, case.message_options
        if key not in carriers:
            carriers[key] = MpiCarrier(
                group, max_message_bytes=case.max_message_bytes, message_options=case.message_options
            )
        try:
            wrong = carry_out(case, carriers[key], group)
        except Exception as error:
            raise RuntimeError(f"rank {world.rank}, case {case.name!r}") from error
        if wrong is not None:
            results.append({"case": case.name, "wrong": wrong or None})
    for carrier in carriers.values():
        carrier.close()
    group.Free()
    watch.begin(None)  # waiting for the other groups may take long
    sleep_until_all_arrive(world)
    return results


def sleep_until_all_arrive(world):
    """A barrier that leaves the cores to the ranks that still work."""
    barrier = world.Ibarrier()
    while not barrier.Test():
        time.sleep(0.01)


def main():
    from mpi4py import MPI

    seconds = float(sys.argv[sys.argv.index("--case-seconds") + 1]) if "--case-seconds" in sys.argv else CASE_SECONDS
    world, watch = MPI.COMM_WORLD, Watch(seconds)
    assert world.size == WORLD, f"{world.size} ranks, not {WORLD}"
    for groups in shares():
        begin = time.perf_counter()
        results = play_round(groups, world, watch)
        for share in world.gather(results) or []:
            for result in share:
                print(json.dumps(result), flush=True)
        if world.rank == 0 and "--times" in sys.argv:
            sizes = ",".join(str(size) for _, size, _ in groups)
            print(f"groups of {sizes}: {time.perf_counter() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
