"""`quadrille run`: from flags to a measured record, on every rank of an MPI world or alone as one rank.

Whatever can be refused is refused before a matrix is allocated: sizes and
names by every rank alike, then the number of ranks, files, and memory.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from algorithms.errors import InputError, RunError
from algorithms.matmul import Matmul
from algorithms.provenance import provenance
from algorithms.schedule import Schedule
from runtime.execute import Execution, execute
from runtime.matrix_files import (
    MatrixWriter,
    check_writable,
    commit_all,
    discard_all,
    file_dtype,
    open_operands,
    writing_token,
)
from runtime.operands import Operands
from runtime.verify import FACTORS, Method, Product, Verification, choose_method, combine, output_of_block, verify
from studies.experiment import (
    Checked,
    Experiment,
    Flags,
    Plan,
    RunFlags,
    check_ranks,
    parse_experiment,
    parse_plan,
    remarks,
)
from studies.launch import MARK, note_partial_files
from studies.machine_flags import MachineFlags
from studies.records import KernelSeconds, Measured, mean_over_ranks, measured_record, typical
from studies.results import Destinations, write_results
from studies.site import Site, check_memory, find_site, hosts_of_ranks, open_carrier, start_world

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from algorithms.machine import Machine
    from runtime.reference_kernels import ReferenceKernels

__all__ = ["Destinations", "Flags", "RunFlags", "parse_plan", "run"]


def run(
    flags: Flags,
    run_flags: RunFlags,
    on: MachineFlags,
    *,
    destinations: Destinations,
    command: Sequence[str] = (),
) -> None:
    """Runs the experiment on all ranks; rank 0 writes its record, or prints it.

    Parameters
    ----------
    on : the machine: checked and named in the record, which it does not change
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : an experiment that cannot be
    RunError : a result that did not verify, or could not be written
    """
    experiment = parse_experiment(flags)
    if experiment.shards == "even":
        raise InputError("shards 'even': no rank has shards of mean size; a run accepts exact")
    experiment.choices.check_runnable()
    plan = parse_plan(run_flags, experiment)
    communicator = start_world()
    check_ranks(experiment, communicator.size)
    schedule = experiment.schedule()
    named = None
    if communicator.rank == 0:
        machine_file = {"--machine": on.machine} if on.machine else {}
        destinations.check({**plan.files, **machine_file}, ranks=experiment.grid.size)
        named = _machine(on, experiment)
    operands = _operands(experiment.problem, plan)
    writers = _writers(experiment.problem, plan, communicator)
    check_writable(list(writers.values()))
    site = find_site(communicator, plan.backend, experiment.problem.dtype, experiment.threads)
    experiment = experiment.on_nodes(hosts_of_ranks(communicator))
    check_memory(schedule, experiment.choices, site, verifies=plan.checked is not None)
    for remark in remarks(experiment, schedule) if site.speaks else ():
        print(f"quadrille: {remark}", file=sys.stderr)
    measured, execution = _measure(experiment, schedule, plan, operands, site)
    verification = measured.verification
    if verification is None or verification.ok:
        _write_outputs(schedule, execution, writers, site)
    if site.speaks:
        made = measured_record(experiment, schedule, measured, provenance(command), named)
        write_results(destinations, made, typical(measured.timelines))
        if verification is not None and not verification.ok:
            raise RunError(f"{verification}" + ("; no matrix was written" if writers else ""))


# What is asked for


def choose(checked: Checked, experiment: Experiment, schedule: Schedule) -> Method:
    """How the result is checked: by the serial product where each rank's share of every product is small enough."""
    if checked != "auto":
        return checked
    return choose_method(max(_multiplications(product, schedule) for product in experiment.problem.outputs))


def _multiplications(product: str, schedule: Schedule) -> int:
    """Multiplications behind the block of a product on rank 0, whose blocks are the largest."""
    inner = schedule.sizes[FACTORS[_product(product)].contracted]
    return inner * schedule.tensors[product].block(schedule.place(0)).elements


def _machine(on: MachineFlags, experiment: Experiment) -> "Machine | None":
    """The machine that the flags name, if they do; checked as for a prediction."""
    if not on.given:
        return None
    from studies.predict import fitting_machine  # a rank has no use for the simulator otherwise

    return fitting_machine(on, experiment)


def _operands(problem: Matmul, plan: Plan) -> Operands:
    return open_operands(
        problem.m,
        problem.k,
        problem.n,
        problem.dtype,
        seed=plan.seed,
        kind=plan.kind,
        paths=plan.inputs,
        training=problem.training,
    )


def _writers(problem: Matmul, plan: Plan, communicator: "Intracomm") -> dict[Product, MatrixWriter]:
    """One for each product that goes to a file, the same on every rank."""
    shapes = {"C": (problem.m, problem.n), "dA": (problem.m, problem.k), "dB": (problem.k, problem.n)}
    token: str = communicator.bcast(writing_token())
    dtype = file_dtype(problem.dtype)
    return {
        product: MatrixWriter(path, shapes[product], dtype, flag=f"--{product.lower()}", token=token)
        for product, path in plan.outputs.items()
    }


# The run


def _measure(
    experiment: Experiment, schedule: Schedule, plan: Plan, operands: Operands, site: Site
) -> tuple[Measured, Execution]:
    """What was measured, complete at rank 0 only, and the rank's results."""
    from threadpoolctl import threadpool_limits

    from runtime.reference_kernels import ReferenceKernels

    beside = Beside(ReferenceKernels())
    with (
        threadpool_limits(site.threads, user_api="blas"),
        open_carrier(plan.carrier, site, experiment.choices, experiment.problem.dtype) as carrier,
    ):
        execution = execute(
            schedule,
            operands,
            carrier,
            repeats=plan.repeats,
            warmups=plan.warmups,
            choices=experiment.choices,
            library=site.library,
            between=beside.measure,
        )
        verification = None
        if plan.checked is not None:
            method = choose(plan.checked, experiment, schedule)
            verification = _verified(schedule, execution, operands, method, site)
    by_rank = site.communicator.gather(beside.seconds[plan.warmups :])
    reference = mean_over_ranks(by_rank) if by_rank is not None else []
    measured = Measured(
        execution.timelines,
        execution.bytes_sent,
        reference,
        verification,
        plan.warmups,
        site.threads,
        plan.backend,
    )
    return measured, execution


class Beside:
    """The reference kernels as they were beside each run, warm-ups included."""

    def __init__(self, kernels: "ReferenceKernels") -> None:
        self._kernels = kernels
        self.seconds: list[KernelSeconds] = []

    def measure(self, _rank: int) -> None:
        self.seconds.append(self._kernels.measure())


# What came of it


def _verified(schedule: Schedule, execution: Execution, operands: Operands, method: Method, site: Site) -> Verification:
    """The verdict of all ranks, the same on each."""
    rank = site.communicator.rank
    outputs = [
        output_of_block(_product(name), schedule.tensors[name].block(schedule.place(rank)), site.library.fetch(array))
        for name, array in execution.outputs[rank].items()
    ]
    mine = verify(outputs, operands, ranks=site.communicator.size, method=method)
    return combine(site.communicator.allgather(mine))


def _product(name: str) -> Product:
    return cast(Product, name)


def _write_outputs(
    schedule: Schedule, execution: Execution, writers: Mapping[Product, MatrixWriter], site: Site
) -> None:
    """Writes the products that go to files, all of them or none; of repeated blocks the first rank writes its own."""
    if not writers:
        return
    rank = site.communicator.rank
    place = schedule.place(rank)
    try:
        if site.speaks:
            note_partial_files(os.environ.get(MARK), [writer.partial for writer in writers.values()])
        for writer in writers.values() if site.speaks else ():
            writer.create()
        site.communicator.Barrier()
        for product, writer in writers.items():
            tensor = schedule.tensors[product]
            if all(place.coordinates[axis] == 0 for axis in tensor.repeated_over):
                writer.write_block(tensor.block(place), site.library.fetch(execution.outputs[rank][product]))
            writer.close()
        site.communicator.Barrier()
        if site.speaks:
            commit_all(list(writers.values()))
    except BaseException:
        discard_all(list(writers.values()))
        raise
