"""`ImportedJob`: a training job of another program as an experiment, and as the text of an experiment file."""

from dataclasses import dataclass

from quadrille.algorithms.formats.toml_writer import Toml, toml_text
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.experiments.workloads.command_flags import experiment_flags
from quadrille.experiments.workloads.training import TrainingExperiment

SCHEMA = "quadrille/experiment/1"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says beside the files.

    Parameters
    ----------
    gpus, batch, sequence : number of GPUs, sequences of a batch, tokens of a sequence; None for those of the files
    vocabulary : entries of the tokenizer, before they are padded; None for those of the files
    shape : model; None for that of the files
    """

    gpus: int | None = None
    batch: int | None = None
    sequence: int | None = None
    vocabulary: int | None = None
    shape: ModelShape | None = None


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """A job.

    Parameters
    ----------
    experiment : the experiment
    ignored : keys of the files that are not read
    differences : what the experiment does otherwise than the job
    remarks : what else a user should know
    """

    experiment: TrainingExperiment
    ignored: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text of the experiment file, with its differences as comments."""
        table: dict[str, Toml] = {"schema": SCHEMA}
        words = experiment_flags(self.experiment)
        while words:
            name = words.pop(0).removeprefix("--")
            table[name] = words.pop(0) if words and not words[0].startswith("--") else True
        return "".join(f"# differs: {line}\n" for line in self.differences) + toml_text(table)
