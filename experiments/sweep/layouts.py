"""`Layout`: a named way to spread a model's training step over GPUs, for studies that compare layouts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.sweep.sweep_points import OneGrid
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A model, a grid of Megatron-LM's scheme, and the options of the step.

    >>> layout = Layout(name="tensor", gpt="tiny", grid="data=4,x=2", options={"micro_batch": 1})
    >>> layout.experiment(8).grid.size
    8

    Parameters
    ----------
    name : name in tables
    gpt : name of the model
    grid : axes and their lengths
    options : fields of `Gpt` other than sizes, such as `zero` and `micro_batch`
    """

    name: str
    gpt: str
    grid: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def experiment(self, batch: int, placement: str = "packed") -> TrainingExperiment:
        """The training step in 16 bits, with all overlaps, and sequence parallelism over tensor ranks.

        Parameters
        ----------
        batch : sequences of the global batch
        placement : rule that places ranks on GPUs, or a file

        Raises
        ------
        InputError : an unknown model, or a grid or option that it refuses
        """
        shape, grid = find_shape(self.gpt), parse_grid(self.grid)
        problem = gpt_from_shape(shape, batch, dtype="bfloat16", **self.options)
        scheme = find_scheme("megatron", sequence_parallel=grid.x > 1)
        execution = ExecutionOptions(overlaps=frozenset(OVERLAPS), placement=placement)
        return TrainingExperiment(problem, grid, scheme, execution, shape)

    def on(self, machine: Machine, batch: int, most_seconds: float, placement: str = "packed") -> OneGrid:
        """The point of a study: this layout on a machine.

        Parameters
        ----------
        batch : sequences of the global batch
        most_seconds : processor time after which the simulation stops [s]
        placement : rule that places ranks on GPUs, or a file
        """
        return OneGrid(self.experiment(batch, placement), machine, most_seconds)
