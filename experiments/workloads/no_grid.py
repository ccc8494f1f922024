"""The words of an answer without a grid: which quantity is at fault, and what would help.

`rank`, `sweep --best-grid` and the scaling study use the same words:

    no grid fits    grids need more memory than a device has; the largest part of it is named, and grids that are left
                    out for other reasons are counted, with an example of the most frequent reason
    no … is left    grids are left out for other reasons; each reason is counted, with examples
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from sys import maxsize
from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.memory import largest_memory
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.workloads.memory_advice import STATE, memory_advice, problem_memory_options, tensor_advice
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.experiments.workloads.matmul import MatmulExperiment
    from quadrille.experiments.workloads.training import TrainingExperiment

MEMORY, HOST_MEMORY, DIVISION = "memory", "memory of the hosts", "what does not divide"
"""The usual reasons why a grid is left out."""


NUMBER = re.compile(r"\d+")
MOST_SENTENCES = 3
"""The most sentences of a reason in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShortage:
    """The grid that needs the least memory, where no grid fits.

    Parameters
    ----------
    subject : model or multiplication, with its name or sizes
    grid : the grid that needs least
    rank_bytes : memory that a rank needs on it [B]
    sharing : number of ranks that share a device
    advice : largest part of the memory, and what makes it smaller
    """

    subject: str
    grid: Grid
    rank_bytes: int
    sharing: int
    advice: str

    def message(self, machine: Machine, limit: float | None = None) -> str:
        """The error message: the memory that is needed, the memory that there is, and the advice.

        Parameters
        ----------
        limit : memory of a device that may be used [B]; by default all
        """
        from quadrille.simulator.machine.network import network_of

        kind, _ = network_of(machine).endpoints
        device = "GPU" if kind == "gpu" else kind
        ranks = f"{self.grid.size} {'GPU' if kind == 'gpu' else 'rank'}{'s' if self.grid.size > 1 else ''}"
        shared = f", {self.sharing} ranks" if self.sharing > 1 else ""
        there = (
            f"one of {machine.name} has {format_bytes(machine.device.memory_bytes)}"
            if limit is None or limit >= machine.device.memory_bytes
            else f"--memory-per-gpu allows {format_bytes(limit)}"
        )
        return (
            f"no grid fits: {self.subject} on {ranks} needs at least {format_bytes(self.sharing * self.rank_bytes)} "
            f"a {device} (grid {self.grid}{shared}), and {there}; {self.advice}"
        )


def step_shortage(step: "TooLarge", subject: str, machine: Machine, sharing: int) -> MemoryShortage:
    """The shortage of a training step on the grid that needs least; the advice names the largest part of its memory,
    and options with which it fits.

    More GPUs make activations of a sequence smaller only if they share the sequence.  A grid of a search that is longer
    than 1 along data or z has GPUs that share no sequence, so the advice about its activations names no more GPUs.

    Parameters
    ----------
    subject : model, such as `model gpt3-175b`
    sharing : number of ranks that share a device
    """
    from quadrille.experiments.workloads.memory_remedies import remedy_texts

    experiment, device_bytes = step.experiment, machine.device.memory_bytes / sharing
    kinds = largest_memory(experiment.applied_schedule(), experiment.execution.choices)
    sizes = {str(kind): size for kind, size in kinds.items()}
    if step.states_only:
        sizes |= dict.fromkeys(STATE, 0) | {"parameters": step.rank_bytes}
    copies = experiment.grid.data * experiment.grid.z
    options = replace(problem_memory_options(experiment.problem), more_ranks_help=copies == 1)
    advice = memory_advice(sizes, options, device_bytes, states_first=step.states_only)
    return MemoryShortage(
        subject=subject,
        grid=experiment.grid,
        rank_bytes=sum(kinds.values()) if step.is_bound else step.rank_bytes,
        sharing=sharing,
        advice="; ".join([advice, *remedy_texts(experiment, machine, sharing)]),
    )


def matmul_shortage(experiment: "MatmulExperiment", rank_bytes: int, sharing: int) -> MemoryShortage:
    """The shortage of a multiplication on the grid that needs least; the advice names its largest matrix."""
    problem, schedule = experiment.problem, experiment.schedule()
    buffers = storage(schedule, schedule.coordinates(0), experiment.execution.choices)
    sizes = {
        name: elements * buffers.copies[name] * buffers.item_bytes[name] for name, elements in buffers.tensors.items()
    }
    return MemoryShortage(
        subject=f"multiplication {problem.m},{problem.k},{problem.n} by {experiment.algorithm}",
        grid=experiment.grid,
        rank_bytes=rank_bytes,
        sharing=sharing,
        advice=tensor_advice(sizes),
    )


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A training step on a grid whose ranks need more memory than a device has.

    Parameters
    ----------
    rank_bytes : memory that a rank needs [B]
    states_only : whether `rank_bytes` counts parameters, gradients and optimizer states only
    host_shortage : text about the host memory that does not suffice; empty if the device's memory does not
    is_bound : whether `rank_bytes` is a lower bound, without some activations
    """

    experiment: "TrainingExperiment"
    rank_bytes: int
    states_only: bool = False
    host_shortage: str = ""
    is_bound: bool = False

    @property
    def order(self) -> tuple[bool, bool, bool, int, int]:
        """A sort key: memory of a device that was counted in full comes first, then the least memory, then the
        smallest microbatch.
        """
        micro_batch = getattr(self.experiment.problem, "micro_batch", None)
        return bool(self.host_shortage), self.states_only, self.is_bound, self.rank_bytes, micro_batch or maxsize

    def message(self, machine: Machine) -> str:
        """The memory that the step needs, and the memory that a device or a host of the machine has."""
        if self.host_shortage:
            return f"{self.experiment.scheme.name} on {self.experiment.grid}: {self.host_shortage}"
        device_bytes, least = format_bytes(machine.device.memory_bytes), format_bytes(self.rank_bytes)
        need = f"{self.experiment.scheme.name} on {self.experiment.grid} needs at least {least} a GPU"
        return f"{need}, and one of {machine.name} has {device_bytes}"


@dataclass(slots=True)
class ExcludedGrids:
    """Grids or configurations that are left out, counted by reason, with an example of each reason and each sentence.

    >>> excluded = ExcludedGrids()
    >>> excluded.add("memory", "60 GiB of 40 GiB"), excluded.add("memory", "61 GiB of 40 GiB")
    (None, None)
    >>> excluded.counts["memory"], excluded.examples["memory"]
    (2, '60 GiB of 40 GiB')
    """

    counts: Counter[str] = field(default_factory=Counter)
    sentences: dict[str, dict[str, str]] = field(default_factory=dict)
    """The first example of each sentence of a reason; sentences that differ in their numbers alone are the same."""
    least: TooLarge | None = None
    """The configuration that needs the least memory among those that do not fit."""

    def add(self, reason: str, example: str, count: int = 1) -> None:
        """Counts grids under a reason."""
        if count:
            self.counts[reason] += count
            self.sentences.setdefault(reason, {}).setdefault(NUMBER.sub("", example.partition(": ")[2]), example)

    @property
    def examples(self) -> dict[str, str]:
        """The first example of each reason."""
        return {reason: next(iter(sentences.values())) for reason, sentences in self.sentences.items()}

    def add_too_large(self, too_large: TooLarge, machine: Machine, count: int = 1) -> None:
        """Counts configurations that do not fit in memory."""
        self.add(HOST_MEMORY if too_large.host_shortage else MEMORY, too_large.message(machine), count)
        if too_large.host_shortage:
            return
        if self.least is None or too_large.order < self.least.order:
            self.least = too_large

    def error(self, subject: str, noun: str, machine: Machine, sharing: int) -> InputError:
        """The error of an answer without a grid or configuration; it names the quantity at fault.

        Parameters
        ----------
        subject : model that is trained
        noun : `grid` or `configuration`
        sharing : number of ranks that share a device
        """
        if self.least is None:
            return InputError(f"no {noun} is left: {'; '.join(self.lines())}")
        reasons = [reason for reason in self._reasons() if reason != MEMORY]
        others = [f"{self.counts[reason]} by {reason}" for reason in reasons]
        if others:
            others[0] += f", such as {': '.join(self.examples[reasons[0]].split(': ')[:2])}"
        message = step_shortage(self.least, subject, machine, sharing).message(machine)
        return InputError("; left out are also ".join([message, *(["; ".join(others)] if others else [])]))

    def lines(self) -> list[str]:
        """A line for each reason, the most frequent reason first.

        >>> excluded = ExcludedGrids()
        >>> excluded.add("memory", "60 GiB of 40 GiB", 2)
        >>> excluded.lines()
        ['2 by memory: 60 GiB of 40 GiB']
        """
        return [
            f"{self.counts[reason]} by {reason}: {', or '.join([*self.sentences[reason].values()][:MOST_SENTENCES])}"
            for reason in self._reasons()
        ]

    def _reasons(self) -> list[str]:
        """The reasons, the most frequent first."""
        return [reason for reason, _ in self.counts.most_common()]
