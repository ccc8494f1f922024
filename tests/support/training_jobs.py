"""Training runs with all ranks in this process, for tests of data, checks and checkpoints."""

from dataclasses import replace
from types import SimpleNamespace

from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.resume import checkpoint_names, resume_schedule, with_state_outputs
from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.training import parse_training
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.files.checkpoint import CheckpointWriter
from quadrille.runtime.files.checkpoint_reader import CheckpointSource, open_checkpoint
from quadrille.runtime.training.training_data import TrainingSource
from quadrille.runtime.verifying.training_checks import serial_reference, verify_blocks, worst_verification

SMALL = "layers=3,hidden=30,heads=6,sequence=7,vocabulary=127"


class Alone:
    """A world of one rank."""

    rank, size = 0, 1

    @staticmethod
    def gather(value):
        return [value]

    allgather = gather


def ended(*, save="", load="", seed=0, carrier=InProcess, library=None, warmups=0, **flags):
    """A finished run: experiment, schedule, execution, source, data and first step; results are on the host.

    `carrier` makes one of so many ranks, `library` has the arrays, and `warmups` runs go before.
    """
    library = library or NumpyLibrary()
    experiment = parse_training(TrainingFlags(**flags))
    checkpoint = open_checkpoint(str(load)) if load else None
    first = checkpoint.steps if checkpoint else 0
    schedule = experiment.unchecked_schedule()
    schedule = resume_schedule(schedule, first) if checkpoint else schedule
    schedule = experiment.checked(with_state_outputs(schedule) if save else schedule)
    problem = experiment.problem
    sequence = problem.sequence if isinstance(problem, Gpt) else 0
    data = TrainingSource(schedule, seed=seed, sequence=sequence, prune=problem.prune)
    source = data
    if checkpoint:
        checkpoint.check_fits(schedule, checkpoint_names(schedule), experiment.model)
        checkpoint.check_sums(Alone)
        checkpoint.check_masks(schedule, Alone)
        source = CheckpointSource(checkpoint, data, schedule)
    ranks = carrier(experiment.grid.size)
    choices = experiment.execution.choices
    execution = execute(schedule, source, ranks, warmups=warmups, choices=choices, library=library)
    if save:
        write(save, experiment, schedule, execution, first + problem.steps, library.fetch, source.mask)
    execution = replace(execution, outputs={rank: fetched(found, library) for rank, found in outputs_of(execution)})
    return SimpleNamespace(
        experiment=experiment, schedule=schedule, execution=execution, source=source, data=data, first=first
    )


def outputs_of(execution):
    return sorted(execution.outputs.items())


def fetched(outputs, library):
    """The blocks of a rank on the host."""
    return {
        name: [library.fetch(one) for one in blocks] if isinstance(blocks, list) else library.fetch(blocks)
        for name, blocks in outputs.items()
    }


def write(path, experiment, schedule, execution, steps, fetch=lambda array: array, mask_of=None):
    """Writes a checkpoint of the state of all ranks."""
    writer = CheckpointWriter(path, schedule, checkpoint_names(schedule), steps, experiment.model)
    writer.create()
    for rank, outputs in outputs_of(execution):
        writer.write(schedule.coordinates(rank), outputs, fetch, mask_of)
    writer.seal(Alone)
    writer.commit()
    return writer


def losses(run):
    """The losses of all steps, from the first rank that has them."""
    every = (
        [float(loss.reshape(-1)[0]) for loss in found["loss"] if loss.size] for _, found in sorted(outputs(run).items())
    )
    return next(found for found in every if found)


def outputs(run):
    return run.execution.outputs


def verdict(run, change=lambda rank, blocks: None):
    """The verdict of `--verify` on a run whose blocks were changed."""
    experiment = run.experiment
    reference = serial_reference(experiment.problem, run.schedule, run.source, run.data, run.first)
    verdicts = []
    for rank, found in sorted(outputs(run).items()):
        blocks = {
            name: [one.copy() for one in (blocks if isinstance(blocks, list) else [blocks])]
            for name, blocks in found.items()
        }
        change(rank, blocks)
        verdicts.append(
            verify_blocks(run.schedule, run.schedule.coordinates(rank), blocks, reference, experiment.dtype)
        )
    return worst_verification(verdicts)
