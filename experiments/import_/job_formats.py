"""The formats of training jobs, and the job in the files of one of them.

A text with arguments of Megatron-LM (`megatron_arguments.py`) or of AICB, or a workload of AICB (`aicb.py`), is read as
such.  Other files are JSON, TOML or YAML; the first format of `FORMATS` whose keys a file has reads it.  All files of a
job are of one format.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import read_text
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.model_configs import from_config
from quadrille.experiments.import_ import aicb, calculon, deepspeed, megatron_bridge, simumax, torchtitan
from quadrille.experiments.import_.imported_job import Asked, ImportedJob
from quadrille.experiments.import_.job_experiment import differences, job_experiment, memory_remark
from quadrille.experiments.import_.megatron_arguments import (
    MOST_BYTES,
    JobArguments,
    has_arguments,
    read_arguments,
)
from quadrille.experiments.import_.megatron_job import megatron_job
from quadrille.experiments.import_.settings import Settings, parse_settings
from quadrille.experiments.import_.sharded_training import Layout, layout_experiment
from quadrille.experiments.import_.simai_workload import is_workload

STDIN = "-"
Files = Sequence[Settings]
MegatronParts = tuple[JobArguments, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class JobFormat:
    """A format of configuration files.

    Parameters
    ----------
    name : name of the program
    fits : whether a file is of this format
    read : function that makes the job
    several : whether a job has several files
    """

    name: str
    fits: Callable[[Settings], bool]
    read: Callable[[Files, Asked], ImportedJob]
    several: bool = False


def _by_arguments(parts: Callable[[Files, Asked], MegatronParts]) -> Callable[[Files, Asked], ImportedJob]:
    """The reader of a format that names what Megatron-LM's arguments name."""

    def read(files: Files, asked: Asked) -> ImportedJob:
        named = parts(files, asked)
        return replace(_of_parts(named, asked), ignored=named[1])

    return read


def _of_parts(parts: MegatronParts, asked: Asked) -> ImportedJob:
    arguments, ignored, lines = parts
    job = _megatron(arguments, asked)
    return replace(job, ignored=(*ignored, *job.ignored), differences=(*lines, *job.differences))


def _megatron(arguments: JobArguments, asked: Asked) -> ImportedJob:
    """The job of Megatron-LM's arguments, with the traits of a model that the command line names."""
    chosen = {
        "global-batch-size": asked.batch,
        "seq-length": asked.sequence,
        "vocab-size": asked.vocabulary,
    }
    words = {name: str(number) for name, number in chosen.items() if number is not None}
    arguments = replace(arguments, values={**arguments.values, **words})
    job = megatron_job(arguments, asked.gpus)
    experiment, shape = job_experiment(job), asked.shape
    remarks = (memory_remark(job),) if memory_remark(job) else ()
    if shape is not None:
        assert isinstance(experiment.problem, Gpt)
        exact = experiment.problem.architecture == shape.architecture
        problem = replace(experiment.problem, architecture=shape.architecture, experts=shape.experts)
        experiment = replace(experiment, problem=problem, software=experiment.software if exact else "")
        remarks = (*remarks, *shape.remarks)
    lines = (*differences(job), *(shape.approximations if shape is not None else ()))
    return ImportedJob(experiment, tuple(f"--{name}" for name in job.ignored), lines, remarks)


def _is_config(settings: Settings) -> bool:
    return isinstance(settings.values.get("model_type"), str)


def _read_config(files: Files, asked: Asked) -> ImportedJob:
    """The job of a bare model: one microbatch on each data rank, in bfloat16."""
    if asked.gpus is None:
        raise InputError(f"{files[0].path}: the number of GPUs is missing: --gpus N")
    shape = from_config(files[0].path, asked.sequence)
    layout = Layout(gpus=asked.gpus, batch=asked.batch or 0, micro_batch=1, zero=1)
    words = "a model without a job: bfloat16, ZeRO 1, data parallelism alone, microbatches of one sequence"
    return ImportedJob(layout_experiment(layout, shape), (), shape.approximations, (words, *shape.remarks))


FORMATS: tuple[JobFormat, ...] = (
    JobFormat(simumax.NAME, simumax.fits, _by_arguments(lambda files, _: simumax.simumax_arguments(files)), True),
    JobFormat(calculon.NAME, calculon.fits, _by_arguments(lambda files, _: calculon.calculon_arguments(files)), True),
    JobFormat(deepspeed.NAME, deepspeed.fits, deepspeed.read_deepspeed),
    JobFormat("Hugging Face", _is_config, _read_config),
    JobFormat(torchtitan.NAME, torchtitan.fits, torchtitan.read_torchtitan),
    JobFormat(megatron_bridge.NAME, megatron_bridge.fits, _by_arguments(megatron_bridge.bridge_arguments)),
)
"""The formats, in the order in which they are tried."""
ACCEPTED = f"accepted are files of {', '.join(['Megatron-LM', aicb.NAME, *(form.name for form in FORMATS)])}"
"""The programs whose files are jobs, in words."""


def read_job(paths: Sequence[str], asked: Asked) -> ImportedJob:
    """The job in files; `-` is stdin.

    Raises
    ------
    InputError : a file that cannot be read, files of no format or of several, or a job that no experiment has
    """
    texts = {path: _text(path) for path in dict.fromkeys(paths)}
    try:
        if len(texts) == 1 and (parts := _parts(*next(iter(texts.items())), asked)):
            return _of_parts(parts, asked)
        return _of_format([_settings(path, text) for path, text in texts.items()], asked)
    except InputError as error:
        named = next(iter(texts))
        raise error if any(str(error).startswith(path) for path in texts) else InputError(f"{named}: {error}") from None


def _parts(path: str, text: str, asked: Asked) -> MegatronParts | None:
    """What a text says in words of Megatron-LM; None for a text that is neither arguments nor a workload."""
    if is_workload(text):
        return aicb.workload_arguments(text, path, asked)
    if aicb.is_command(text):
        return aicb.command_arguments(text)
    return (read_arguments(text), (), ()) if has_arguments(text) else None


def _settings(path: str, text: str) -> Settings:
    """The settings of a file; a text that is none and has no mark of a job is refused as such."""
    if not text.strip():
        raise InputError(f"{path}: is empty")
    try:
        return parse_settings(path, text)
    except InputError as error:
        if is_job(text):
            raise
        reason = str(error).removeprefix(path).lstrip(",: ")
        raise InputError(f"{path}: is no job: {ACCEPTED} ({reason})") from None


def _of_format(files: Files, asked: Asked) -> ImportedJob:
    """The job in configuration files of one format."""
    formats = {file.path: next((form for form in FORMATS if form.fits(file)), None) for file in files}
    if unknown := [path for path, form in formats.items() if form is None]:
        raise InputError(f"{unknown[0]}: its keys are those of no job: {ACCEPTED}")
    used = list(dict.fromkeys(form for form in formats.values() if form is not None))
    if len(used) > 1 or (len(files) > 1 and not used[0].several):
        words = " and ".join(form.name for form in used)
        raise InputError(f"{files[1].path}: {len(files)} files of {words}: one job at a time is accepted")
    return used[0].read(files, asked)


def _text(path: str) -> str:
    try:
        return sys.stdin.read(MOST_BYTES + 1) if path == STDIN else read_text(path, MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text in UTF-8") from None


def is_job(head: str) -> bool:
    """Whether the first characters of a file are those of a configuration of a job, whole or truncated."""
    if has_arguments(head) or aicb.is_command(head):
        return True
    marks: Mapping[str, tuple[str, ...]] = {
        "SimuMax": ('"head_num"', '"micro_batch_num"', '"accelerator"'),
        "Calculon": ('"num_blocks"', '"num_procs"', '"processing_mode"'),
        "DeepSpeed": ('"zero_optimization"', '"train_batch_size"', '"train_micro_batch_size_per_gpu"'),
        "Hugging Face": ('"model_type"',),
        "torchtitan": ('"parallelism"', "[parallelism]"),
        "Megatron-Bridge": ("global_batch_size:", "tensor_model_parallel_size:"),
    }
    return any(mark in head for words in marks.values() for mark in words)
