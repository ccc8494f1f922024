"""`TrainingJob`: the inputs, the verification and the checkpoint of a training run, on one rank."""

import os
from typing import TYPE_CHECKING

from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.resume import checkpoint_names, resume_schedule, with_state_outputs
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.execution.execution_results import Execution
from quadrille.runtime.execution.rank_environment import RankEnvironment, barrier_for_files, shared_token
from quadrille.runtime.files.checkpoint import CheckpointWriter
from quadrille.runtime.files.checkpoint_reader import CheckpointSource, open_checkpoint
from quadrille.runtime.host.progress_reports import collective_work, own_reporter
from quadrille.runtime.host.world import LAUNCH
from quadrille.runtime.launching.launch_folder import note_partial_files
from quadrille.runtime.training.pruned_source import TrainingInputs
from quadrille.runtime.training.training_data import TrainingSource, check_text
from quadrille.runtime.verifying.training_checks import (
    SerialReference,
    serial_bytes,
    serial_reference,
    verify_blocks,
    worst_verification,
)
from quadrille.runtime.verifying.verify import Verification

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class TrainingJob:
    """A training job on one rank: initial or loaded parameters, verification, and a checkpoint at the end.

    Parameters
    ----------
    communicator : communicator of all ranks; each rank has a job
    """

    schedule: Schedule
    source: TrainingInputs

    def __init__(self, experiment: TrainingExperiment, options: RunOptions, communicator: "Intracomm") -> None:
        self._experiment, self._options, self._communicator = experiment, options, communicator
        problem = experiment.problem
        if isinstance(problem, Gpt):
            check_text(problem.sequence, problem.vocabulary)
        self._checkpoint = open_checkpoint(options.load) if options.load else None
        self._first_step = self._checkpoint.steps if self._checkpoint is not None else 0
        schedule = experiment.unchecked_schedule()
        if self._checkpoint is not None:
            schedule = resume_schedule(schedule, self._first_step)
        if options.save:
            schedule = with_state_outputs(schedule)
        self.schedule = experiment.checked(schedule)
        self.verify_bytes = serial_bytes(problem, communicator.rank)

    def open(self) -> None:
        """Checks that the checkpoint to load is intact and of this model, and that a checkpoint can be written."""
        problem, options = self._experiment.problem, self._options
        sequence = problem.sequence if isinstance(problem, Gpt) else 0
        self._data = TrainingSource(self.schedule, seed=options.seed, sequence=sequence, prune=problem.prune)
        source: TrainingInputs = self._data
        if self._checkpoint is not None:
            self._checkpoint.check_fits(self.schedule, checkpoint_names(self.schedule), self._experiment.model)
            self._checkpoint.check_sums(self._communicator, own_reporter())
            self._checkpoint.check_masks(self.schedule, self._communicator)
            source = CheckpointSource(self._checkpoint, source, self.schedule)
        self.source = source
        self._writer = None
        if options.save:
            token = shared_token(self._communicator)
            steps = self._first_step + problem.steps
            self._writer = CheckpointWriter(
                options.save, self.schedule, checkpoint_names(self.schedule), steps, self._experiment.model, token=token
            )
            self._writer.check_writable()

    def losses(self, execution: Execution, site: RankEnvironment) -> tuple[float, ...]:
        """The loss of every step, from the first rank that has losses."""
        rank = site.communicator.rank
        own_verification = [
            float(site.library.fetch(loss).reshape(-1)[0]) for loss in execution.outputs[rank]["loss"] if loss.size
        ]
        with collective_work("gathering losses"):
            losses_by_rank: list[list[float]] = site.communicator.allgather(own_verification)
        return tuple(next(losses for losses in losses_by_rank if losses))

    def verified(self, execution: Execution, site: RankEnvironment) -> Verification:
        """The result of the verification, equal on all ranks: rank 0 trains serially and broadcasts the reference."""
        communicator = site.communicator
        reference: SerialReference | None = None
        if communicator.rank == 0:
            reference = serial_reference(
                self._experiment.problem, self.schedule, self.source, self._data, self._first_step
            )
        with collective_work("handing out the reference"):
            reference = communicator.bcast(reference)
        assert reference is not None
        blocks = {
            name: [site.library.fetch(array) for array in (output if isinstance(output, list) else [output])]
            for name, output in execution.outputs[communicator.rank].items()
        }
        place = self.schedule.coordinates(communicator.rank)
        own_verification = verify_blocks(self.schedule, place, blocks, reference, self._experiment.dtype)
        with collective_work("comparing verdicts"):
            return worst_verification(communicator.allgather(own_verification))

    def write(self, execution: Execution, site: RankEnvironment) -> None:
        """Writes the checkpoint, if one was asked for."""
        writer = self._writer
        if writer is None:
            return
        communicator = site.communicator
        try:
            if site.is_root:
                note_partial_files(os.environ.get(LAUNCH), [writer.partial])
                writer.create()
            barrier_for_files(communicator)
            outputs = execution.outputs[communicator.rank]
            writer.write(self.schedule.coordinates(communicator.rank), outputs, site.library.fetch, self.source.mask)
            barrier_for_files(communicator)
            writer.seal(communicator, own_reporter())
            barrier_for_files(communicator)
            if site.is_root:
                writer.commit()
            barrier_for_files(communicator)  # a later run in this world may load the checkpoint on any rank
        except BaseException:
            writer.discard()
            raise

    @property
    def not_written(self) -> str:
        """The part of an error message about files that were not written; empty if there are none."""
        return "; no checkpoint was written" if self._options.save else ""
