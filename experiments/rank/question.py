"""What `quadrille rank` is asked: flags as they were typed, and what they come to."""

from dataclasses import dataclass, replace
from typing import cast, get_args

from quadrille.algorithms.analysis.axonn import Form, Product, block_products
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import AXES, Grid, parse_order
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.models import ModelShape
from quadrille.experiments.rank.candidates import Limits
from quadrille.experiments.words.machines import MachineWords, chosen_machine
from quadrille.experiments.words.matmul import AUTO
from quadrille.experiments.words.numbers import one_of, whole_number
from quadrille.experiments.words.training import TrainingWords, parse_training
from quadrille.experiments.workloads.rank_orders import ORDERS
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine

OF_STEPS = ("gpt", "batch", "overlap", "recompute", "gathered", "gradient_bytes", "dtype", "collectives")
"""Flags that are those of training steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFlags:
    """The flags as they were typed; the defaults are those of the command line."""

    gpt: str = ""
    batch: str = ""
    gpus: str = ""
    top: str = "8"
    form: str = "exact"
    order: str = ""
    powers_of_two: bool = False
    min_model_parallel: str = "1"
    overlap: str = "none"
    recompute: str = "full"
    gathered: str = "again"
    gradient_bytes: str = "4"
    dtype: str = "bfloat16"
    collectives: str = ""
    granularity: str = "auto"
    scheme: str = ""
    sequence_parallel: bool = False
    pipeline: str = ""
    zero: str = ""
    micro_batch: str = ""
    interleave: str = ""

    @property
    def of_schemes(self) -> bool:
        """Whether more is asked about than the grids of the 4D algorithm."""
        return any((self.scheme, self.sequence_parallel, self.pipeline, self.zero, self.micro_batch, self.interleave))

    @property
    def in_full(self) -> "RankFlags":
        """The same with what is meant where no collectives are named: NCCL's; ours where ops overlap.

        GPUs of several nodes are used with NCCL, whose rings leave a node by all
        its NICs; beside other ops it can only be bounded, ours are exact.
        """
        usual = "nccl" if self.overlap == "none" else "own"
        return replace(self, collectives=self.collectives or usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model to be trained on so many GPUs of a machine, and what is asked of its grids.

    Parameters
    ----------
    training : one step of the model, whatever the grid
    top : grids that are simulated
    form : of the analytical model
    granularity : of simulations; `auto` is that of collectives, unless ops overlap
    """

    training: TrainingExperiment
    shape: ModelShape
    gpus: int
    machine: Machine
    top: int
    form: Form
    limits: Limits
    granularity: AskedGranularity = "auto"

    @property
    def problem(self) -> Gpt:
        assert isinstance(self.training.problem, Gpt)
        return self.training.problem

    @property
    def peak_flops_per_second(self) -> float | None:
        """Of a GPU in the dtype; None where the machine does not say."""
        return self.machine.device.peak_flops_per_second.get(self.training.dtype)

    def products(self) -> tuple[Product, ...]:
        """The products of a layer."""
        shape = self.shape
        return block_products(shape.hidden, self.form, qkv=shape.qkv, up=shape.up, down=shape.mlp)

    def experiment(self, grid: Grid) -> TrainingExperiment:
        """The step on a grid."""
        return replace(self.training, grid=grid)

    def schedule(self, grid: Grid) -> Schedule:
        """The step's schedule on a grid, with the overlaps asked for, not checked."""
        return self.experiment(grid).applied_schedule()


def parse_question(flags: RankFlags, on: MachineWords) -> Question:
    """What the flags ask, in full.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    flags = flags.in_full
    for name, example in (("gpt", "--gpt 20b"), ("batch", "--batch 1024"), ("gpus", "--gpus 32")):
        if not getattr(flags, name):
            raise InputError(f"--{name} is missing: rank needs it, as in {example}")
    training = parse_training(TrainingWords(**{name: getattr(flags, name) for name in OF_STEPS}))
    assert training.shape is not None
    training.execution.choices.check_schedulable()
    gpus = whole_number(flags.gpus, "--gpus")
    return Question(
        training=training,
        shape=training.shape,
        gpus=gpus,
        machine=_machine(on, gpus),
        top=whole_number(flags.top, "--top"),
        form=cast(Form, one_of(flags.form, "form", get_args(Form))),
        limits=_limits(flags),
        granularity=cast(AskedGranularity, one_of(flags.granularity, "granularity", get_args(AskedGranularity))),
    )


def _limits(flags: RankFlags) -> Limits:
    order = None
    if flags.order not in ("", AUTO):
        every = parse_order(flags.order)
        if "pipeline" in every[:-1]:
            raise InputError(f"order {flags.order!r}: pipeline is the slowest axis: leave it out")
        order = tuple(axis for axis in every if axis in ORDERS[0])
        assert len(order) == len(AXES) - 1
    least = whole_number(flags.min_model_parallel, "--min-model-parallel")
    return Limits(order, flags.powers_of_two, least)


def _machine(on: MachineWords, gpus: int) -> Machine:
    """The machine, known to have so many GPUs.

    Raises
    ------
    InputError : a machine that cannot be, has no GPUs or too few
    """
    from quadrille.simulator.machine.network import network_of

    machine = chosen_machine(on, gpus)
    net = network_of(machine)
    kind, count = net.places
    if kind != "gpu":
        raise InputError(f"machine {machine.name} computes on {kind}s: rank asks about machines of GPUs")
    if gpus > count:
        raise InputError(f"--gpus {gpus}: {machine.name} has {count}")
    return machine
