"""`MatmulJob`: the inputs, the verification and the output files of a matmul run, on one rank."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from quadrille.algorithms.matmuls.matmul import Form, Matmul, Product
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions, VerifyMethod
from quadrille.runtime.execution.execution_results import Execution
from quadrille.runtime.execution.rank_environment import RankEnvironment, barrier_for_files, shared_token
from quadrille.runtime.files.matrix_files import (
    MatrixWriter,
    check_writable,
    commit_all,
    discard_all,
    file_dtype,
    open_operands,
)
from quadrille.runtime.host.progress_reports import collective_work
from quadrille.runtime.host.world import LAUNCH
from quadrille.runtime.operands.operands import Operands

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from quadrille.runtime.verifying.verify import Method, Verification


class MatmulJob:
    """A matmul job on one rank: operands from files or a generator, verification, and products written to files.

    Parameters
    ----------
    communicator : communicator of all ranks; each rank has a job
    """

    def __init__(self, experiment: MatmulExperiment, options: RunOptions, communicator: "Intracomm") -> None:
        self._experiment, self._options = experiment, options
        self.schedule = experiment.schedule()
        self._communicator = communicator
        self.source: Operands

    @property
    def verify_bytes(self) -> int:
        """Bytes that verification needs on this rank."""
        from quadrille.runtime.verifying.verify import VERIFY_BYTES

        return VERIFY_BYTES

    def open(self) -> None:
        """Opens the inputs and checks that all outputs can be written (InputError)."""
        problem = self._experiment.problem
        self.source = _operands(problem, self._options)
        self._writers = _writers(problem, self._options, self._communicator)
        check_writable(list(self._writers.values()))

    def verified(self, execution: Execution, site: RankEnvironment) -> "Verification":
        """The result of the verification, equal on all ranks."""
        method = choose_verify_method(self._options.verify_method, self._experiment, self.schedule)
        return _verified(self.schedule, execution, self.source, method, site)

    def write(self, execution: Execution, site: RankEnvironment) -> None:
        """Writes the products that go to files."""
        _write_outputs(self.schedule, execution, self._writers, site)

    def losses(self, execution: Execution, site: RankEnvironment) -> None:
        """None, because a matmul has no losses."""
        return

    @property
    def not_written(self) -> str:
        """The part of an error message about files that were not written; empty if there are none."""
        return "; no matrix was written" if self._writers else ""


def choose_verify_method(asked: VerifyMethod, experiment: MatmulExperiment, schedule: Schedule) -> "Method":
    """The method that verifies the result: `serial` if a rank's share of each product is small, else `freivalds`."""
    if asked != "auto":
        return asked
    from quadrille.runtime.verifying.verify import choose_method

    problem = experiment.problem
    return choose_method(max(_multiplications(product, problem.form, schedule) for product in problem.outputs))


def _multiplications(product: Product, form: Form, schedule: Schedule) -> int:
    """The number of multiplications for the block of a product on rank 0, which has the largest blocks."""
    inner = schedule.sizes[form.factors(product).contracted]
    return inner * schedule.tensors[product].block(schedule.coordinates(0)).elements


def _operands(problem: Matmul, options: RunOptions) -> Operands:
    return open_operands(
        problem.m,
        problem.k,
        problem.n,
        problem.dtype,
        seed=options.seed,
        kind=options.operands,
        paths=options.inputs,
        training=problem.training,
        transposed=problem.transposed,
    )


def _writers(problem: Matmul, options: RunOptions, communicator: "Intracomm") -> dict[Product, MatrixWriter]:
    """A writer for each product that has a file, the same on every rank."""
    token = shared_token(communicator)
    dtype = file_dtype(problem.dtype)
    return {
        product: MatrixWriter(path, problem.shape(product), dtype, flag=f"--{product.lower()}", token=token)
        for product, path in options.outputs.items()
    }


def _verified(
    schedule: Schedule, execution: Execution, operands: Operands, method: "Method", site: RankEnvironment
) -> "Verification":
    """The result of the verification, equal on all ranks."""
    from quadrille.runtime.verifying.products import output_of_block
    from quadrille.runtime.verifying.verify import combine, verify

    rank = site.communicator.rank
    outputs = [
        output_of_block(
            _product(name), schedule.tensors[name].block(schedule.coordinates(rank)), site.library.fetch(array)
        )
        for name, array in execution.outputs[rank].items()
    ]
    own_verification = verify(outputs, operands, ranks=site.communicator.size, method=method)
    with collective_work("comparing verdicts"):
        return combine(site.communicator.allgather(own_verification))


def _product(name: str) -> Product:
    return cast(Product, name)


def _write_outputs(
    schedule: Schedule, execution: Execution, writers: Mapping[Product, MatrixWriter], site: RankEnvironment
) -> None:
    """Writes the products that have a file, all or none; the first rank with a replicated block writes the block."""
    if not writers:
        return
    rank = site.communicator.rank
    place = schedule.coordinates(rank)
    from quadrille.runtime.launching.launch_folder import note_partial_files

    try:
        if site.is_root:
            note_partial_files(os.environ.get(LAUNCH), [writer.partial for writer in writers.values()])
        for writer in writers.values() if site.is_root else ():
            writer.create()
        barrier_for_files(site.communicator)
        for product, writer in writers.items():
            tensor = schedule.tensors[product]
            if all(place.along[axis] == 0 for axis in tensor.repeated_over):
                writer.write_block(tensor.block(place), site.library.fetch(execution.outputs[rank][product]))
            writer.close()
        barrier_for_files(site.communicator)
        if site.is_root:
            commit_all(list(writers.values()))
        barrier_for_files(site.communicator)  # a run that follows in this world may read them on any rank
    except BaseException:
        discard_all(list(writers.values()))
        raise
