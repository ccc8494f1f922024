"""`CollectiveQuestion`: a collective, its size, and the groups of ranks that run it.

groups of 2 with stride 2 among 8 ranks      0 2 | 1 3 | 4 6 | 5 7
--concurrent one                             the first group
--concurrent all                             all groups at once
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from quadrille.algorithms.collectives.collective_choices import DEFAULT_CHOICES, Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import ROOTED, CollectiveKind
from quadrille.algorithms.tabular import ShortRepr
from quadrille.simulator.collectives.collective import SimulationOptions
from quadrille.simulator.collectives.nccl.collective import DEFAULT_OPTIONS, NEUTRAL_SETTINGS, NcclSettings
from quadrille.simulator.collectives.programs import Ints, Shards
from quadrille.simulator.machine.default_collectives import machine_choices
from quadrille.topologies.machines.machine import Machine

ConcurrentGroups = Literal["one", "all"]

EVEN_FROM = 4096
"""Number of ranks above which shards have the mean size by default."""
USUAL_NICS = 4


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CollectiveQuestion(ShortRepr):
    """A collective of one or more groups of ranks.

    Parameters
    ----------
    kind : kind of collective
    bytes : size of the whole buffer: of a rank after an all-gather, or before a reduce-scatter or all-reduce [B]
    gpus : number of GPUs, each with one rank
    group, stride : number of ranks in a group, and distance in ranks between neighbours
    concurrent : whether one group runs the collective, or all groups at once
    choices : algorithm and library of the collective; by default what the machine runs (`on_machine`)
    channels : number of Quadrille's own rings on different links, each with a part of the buffer; 0 for the fastest
        number; `own:ring` in rank order is 1
    shards : None for exact shards up to 4,096 ranks in a group
    item_bytes : size of an element, for exact shards [B]
    root : index of the root within its group
    placement : rule that places ranks on GPUs
    options, nccl : options of the simulation, and settings of NCCL
    """

    kind: CollectiveKind
    bytes: int
    gpus: int
    group: int
    stride: int = 1
    concurrent: ConcurrentGroups = "one"
    choices: Choices = DEFAULT_CHOICES
    channels: int = 1
    shards: Shards | None = None
    item_bytes: int = 1
    root: int = 0
    placement: str = "packed"
    options: SimulationOptions = DEFAULT_OPTIONS
    nccl: NcclSettings = NEUTRAL_SETTINGS

    def __post_init__(self) -> None:
        if self.kind not in get_args(CollectiveKind):
            raise InputError(f"collective {self.kind!r}: accepted are {', '.join(get_args(CollectiveKind))}")
        for name, value in (("gpus", self.gpus), ("group", self.group), ("stride", self.stride)):
            if value < 1:
                raise InputError(f"--{name} {value}: a whole number from 1 is needed")
        if self.concurrent == "one" and (self.group - 1) * self.stride >= self.gpus:
            raise InputError(
                f"--group {self.group} with --stride {self.stride}: needs {(self.group - 1) * self.stride + 1} GPUs, "
                f"and there are {self.gpus}"
            )
        if self.concurrent == "all" and self.gpus % (self.group * self.stride):
            raise InputError(
                f"--group {self.group} with --stride {self.stride}: {self.gpus} GPUs do not fall into such groups; "
                f"group times stride, {self.group * self.stride}, must divide the number of GPUs"
            )
        if not 0 <= self.root < self.group:
            raise InputError(f"--root {self.root}: a group of {self.group} has roots 0 to {self.group - 1}")
        if self.choices.two_level and self.kind != "all_to_all":
            raise InputError(
                f"collectives {self.choices}: is for all_to_all, and {self.kind} was asked for; nccl is accepted"
            )
        if self.root and self.kind not in ROOTED:
            raise InputError(f"--root {self.root}: {self.kind} has no root; {' and '.join(ROOTED)} have")
        if self.channels < 0:
            raise InputError(f"--channels {self.channels}: a whole number from 0 is needed, 0 for the fastest number")

    def on_machine(self, machine: Machine) -> "CollectiveQuestion":
        """The question with the library that the machine runs, if it names none.

        NCCL has no barrier, and channels are asked of Quadrille's own rings.
        """
        if not self.choices.by_machine:
            return self
        is_own = self.channels != 1 or self.kind == "barrier"
        return replace(self, choices=Choices() if is_own else machine_choices(self.choices, machine))

    @property
    def sharding(self) -> Shards:
        """Whether shards have their exact sizes or the mean size."""
        return self.shards or ("exact" if self.group <= EVEN_FROM else "even")

    @property
    def rounding(self) -> str:
        """The remark about a size that is no whole number of elements; empty otherwise."""
        if self.bytes % self.item_bytes == 0:
            return ""
        elements = round(self.bytes / self.item_bytes)
        return (
            f"--bytes {self.bytes}: no whole number of elements of {self.item_bytes} bytes: {elements} elements are "
            f"simulated, {elements * self.item_bytes} bytes"
        )

    @property
    def most_transfers(self) -> int:
        """The number of transfers of all rings, with `USUAL_NICS` channels if the number of channels is not given."""
        members = self.gpus if self.concurrent == "all" else self.group
        return 2 * (self.group - 1) * members * (self.channels or USUAL_NICS)

    def groups(self) -> Ints:
        """The ranks of every group that takes part [groups, members].

        >>> question = CollectiveQuestion(kind="all_gather", bytes=8, gpus=8, group=2, stride=2, concurrent="all")
        >>> question.groups().tolist()
        [[0, 2], [1, 3], [4, 6], [5, 7]]
        """
        if self.concurrent == "one":
            return self.stride * np.arange(self.group)[None, :]
        return np.arange(self.gpus).reshape(-1, self.group, self.stride).swapaxes(1, 2).reshape(-1, self.group)
