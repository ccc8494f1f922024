"""`RankQuestion`: the question of `quadrille rank`, a model, a number of GPUs of a machine, and the grids to try."""

from dataclasses import dataclass, field, replace

from quadrille.algorithms.analysis.axonn import Form, ProductSizes, block_products
from quadrille.algorithms.errors import InputError, ParameterError
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.experiments.predict.prepared_experiment import with_machine_choices
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.workloads.product_peak import check_products, product_peak
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RankQuestion(ShortRepr):
    """A model that is trained on a number of GPUs of a machine, and the grids to try.

    Parameters
    ----------
    training : one training step of the model; its grid is replaced
    shape : shape of the model
    gpus, machine : number of GPUs, and the machine
    top : number of grids that are simulated
    form : form of the analytical model
    limits : restrictions on the grids
    granularity : granularity of simulations; `auto` is collective, unless ops overlap
    """

    training: TrainingExperiment
    shape: ModelShape
    gpus: int
    machine: Machine
    top: int = 8
    form: Form = "exact"
    limits: GridLimits = field(default_factory=GridLimits)
    granularity: AskedGranularity = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "training", with_machine_choices(self.training, self.machine))
        self.training.execution.choices.check_schedulable()
        check_gpus(self.machine, self.gpus)
        check_offload(self.machine, self.problem)
        check_products(self.training, self.machine)

    @property
    def problem(self) -> Gpt:
        assert isinstance(self.training.problem, Gpt)
        return self.training.problem

    @property
    def peak_flops_per_second(self) -> float | None:
        """Peak rate of a GPU in the precision of products [flop/s]; None if the machine has no rate for it."""
        return product_peak(self.training, self.machine, 1)

    def products(self) -> tuple[ProductSizes, ...]:
        """The products of a layer."""
        shape = self.shape
        return block_products(
            shape.hidden, self.form, qkv=shape.qkv, attended=shape.attended, up=shape.up, down=shape.mlp
        )

    def experiment(self, grid: Grid) -> TrainingExperiment:
        """The step on a grid."""
        return replace(self.training, grid=grid)

    def schedule(self, grid: Grid) -> Schedule:
        """The step's schedule on a grid, with the requested overlaps, not checked."""
        return self.experiment(grid).applied_schedule()


def check_offload(machine: Machine, problem: Gpt) -> None:
    """Checks that a model's optimizer state can be in the host memory of a machine, if the model offloads it.

    Raises
    ------
    InputError : the machine has no host link
    """
    if problem.offload is None:
        return
    if machine.host_link is None:
        raise InputError(
            f"--offload {problem.offload}: {machine.name} has no host link; accepted is a machine with a table "
            "[host_link], or no --offload"
        )


def check_gpus(machine: Machine, gpus: int) -> None:
    """Checks that a machine has a number of GPUs.

    Raises
    ------
    InputError : the machine has no GPUs, or too few
    """
    from quadrille.simulator.machine.network import network_of

    kind, count = network_of(machine).endpoints
    if kind != "gpu":
        raise InputError(f"machine {machine.name} computes on {kind}s: rank asks about machines of GPUs")
    if gpus > count:
        raise ParameterError("gpus", f"{gpus}: {machine.name} has {count}")
