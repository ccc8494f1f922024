"""What `quadrille rank` is asked: flags as they were typed, and what they come to."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from algorithms.collectives.choices import Choices, parse_choices
from algorithms.costs.axonn_gpt import Form, Product, block_products
from algorithms.errors import InputError
from algorithms.formats.machine import Machine
from algorithms.grid import AXES, Grid, parse_order
from algorithms.matmuls.matmul import Gathered
from algorithms.ops import OverlapName
from algorithms.reordering.overlap import overlap, parse_overlap
from algorithms.schedule import Schedule
from algorithms.tensors import DType
from algorithms.training.gpt import Gpt, gpt_schedule
from algorithms.training.models import ModelShape, find_shape
from algorithms.training.precision import Precision
from algorithms.training.recompute import RECOMPUTES, Recompute
from algorithms.training.scheme_4d import Scheme4D
from studies.machine_flags import MachineFlags, chosen_machine
from studies.rank.candidates import ORDERS, Limits
from studies.values import one_of, whole_number

Asked = Literal["auto", "exact", "collective"]


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
    collectives: str = "own"
    granularity: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model to be trained on so many GPUs of a machine, and what is asked of its grids.

    Parameters
    ----------
    batch : sequences of one step
    top : grids that are simulated
    form : of the analytical model
    granularity : of simulations; `auto` is that of collectives, unless ops overlap
    """

    shape: ModelShape
    batch: int
    gpus: int
    machine: Machine
    top: int
    form: Form
    limits: Limits
    overlaps: frozenset[OverlapName]
    recompute: Recompute
    gathered: Gathered
    precision: Precision
    choices: Choices
    granularity: Asked = "auto"

    def products(self) -> tuple[Product, ...]:
        """The products of a layer; a gated MLP's two are as one that is one and a half times as wide."""
        shape = self.shape
        inner = shape.mlp * 3 // 2 if shape.gated else shape.mlp
        return block_products(shape.hidden, self.form, qkv=shape.qkv, inner=inner)

    def schedule(self, grid: Grid, layers: int | None = None) -> Schedule:
        """One training step, with the overlaps asked for; of so many layers, by default all."""
        shape = self.shape
        problem = Gpt(
            layers or shape.layers,
            shape.hidden,
            shape.heads,
            shape.sequence,
            shape.vocabulary,
            self.batch,
            dtype=self.precision.dtype,
            gathered=self.gathered,
            recompute=self.recompute,
            gradient_bytes=self.precision.gradient_bytes,
            inner=shape.mlp * 3 // 2 if shape.gated else shape.mlp,
        )
        return overlap(gpt_schedule(problem, grid, Scheme4D()), self.overlaps)


def parse_question(flags: RankFlags, on: MachineFlags) -> Question:
    """What the flags ask.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    for name, example in (("gpt", "--gpt 20b"), ("batch", "--batch 1024"), ("gpus", "--gpus 32")):
        if not getattr(flags, name):
            raise InputError(f"--{name} is missing: rank needs it, as in {example}")
    shape = find_shape(flags.gpt)
    gpus = whole_number(flags.gpus, "--gpus")
    choices = parse_choices(flags.collectives)
    choices.check_schedulable()
    return Question(
        shape=shape,
        batch=whole_number(flags.batch, "--batch"),
        gpus=gpus,
        machine=_machine(on, gpus),
        top=whole_number(flags.top, "--top"),
        form=cast(Form, one_of(flags.form, "form", get_args(Form))),
        limits=_limits(flags),
        overlaps=parse_overlap(flags.overlap),
        recompute=cast(Recompute, one_of(flags.recompute, "recompute", RECOMPUTES)),
        gathered=cast(Gathered, one_of(flags.gathered, "gathered", get_args(Gathered))),
        precision=Precision(
            cast(DType, one_of(flags.dtype, "dtype", get_args(DType))),
            whole_number(flags.gradient_bytes, "--gradient-bytes"),
        ),
        choices=choices,
        granularity=cast(Asked, one_of(flags.granularity, "granularity", get_args(Asked))),
    )


def _limits(flags: RankFlags) -> Limits:
    order = None
    if flags.order:
        order = tuple(axis for axis in parse_order(flags.order) if axis in ORDERS[0])
        assert len(order) == len(AXES) - 1
    least = whole_number(flags.min_model_parallel, "--min-model-parallel")
    return Limits(order, flags.powers_of_two, least)


def _machine(on: MachineFlags, gpus: int) -> Machine:
    """The machine, known to have so many GPUs.

    Raises
    ------
    InputError : a machine that cannot be, has no GPUs or too few
    """
    from simulator.machine_network import network_of

    machine = chosen_machine(on, gpus)
    net = network_of(machine)
    kind, count = net.places
    if kind != "gpu":
        raise InputError(f"machine {machine.name} computes on {kind}s: rank asks about machines of GPUs")
    if gpus > count:
        raise InputError(f"--gpus {gpus}: {machine.name} has {count}")
    return machine
