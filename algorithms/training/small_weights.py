"""Weights in small numbers: from the master weights to the tensors that products read, once a step.

    W                 master weights, sharded over data from ZeRO 1 on
    W in 16 bits      weights in the dtype, gathered over data; with `--fp8-param-gather` for one layer at a time, or
                      not at all if small weights are gathered
    W cast            the rank's own part of the gathered weights
    W held            small weights along rows, as products read them; `W held small columns` along columns

Bytes of a weight before gradients and optimizer: 2 + 2 (1 with NVFP4), with `--fp8-param-gather` 2 (1).  ZeRO 3 gathers
before each use and makes them small then, unless it gathers small ones.

Products of both passes read `W held`: the copy along columns has its size, so its gathers over z cost the same.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.ops import Kernel, Op, SmallPrecision
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.layers import Parameter
from quadrille.algorithms.training.small_numbers import RECIPES, SMALL, Recipe, cast_ops, small_columns


@dataclass(frozen=True, slots=True)
class SmallWeight:
    """The weights of a product in small numbers.

    Parameters
    ----------
    parameter : the weights as the scheme distributes them
    held, own : names of the tensor that products read, and of the rank's own part of the gathered weights
    precision : precision of the product
    zero : ZeRO stage; 0 if nothing is sharded over data
    alone : whether no 16-bit weights are stored (`--fp8-param-gather`)
    keeps : whether weights that ZeRO 3 gathers serve both passes
    """

    parameter: Parameter
    held: str
    own: str
    precision: SmallPrecision
    zero: int
    alone: bool
    keeps: bool

    @property
    def _recipe(self) -> Recipe:
        return RECIPES[self.precision]

    @property
    def _gathers_small(self) -> bool:
        return self.alone and self._recipe.gathers_small

    @property
    def _wide(self) -> str:
        return f"{self.parameter.name} in 16 bits"

    @property
    def gathered(self) -> str:
        """Name of the tensor into which weights are gathered over data."""
        return self.held if self._gathers_small else self._wide

    def tensors(self, stored: Parameter, whole: str) -> Iterator[Tensor]:
        """The tensors between the stored master weights and the products.

        Parameters
        ----------
        stored : the weights as the optimizer stores them
        whole : name of the tensor into which the first collective gathers the rank's own part
        """
        tensor, recipe = self.parameter.tensor, self._recipe
        single = replace(tensor, copies=(), first_indices=())
        held = replace(single if self.zero == 3 and not self.keeps else tensor, name=self.held, dtype=SMALL)
        yield held
        if recipe.has_columns:
            yield replace(held, name=small_columns(self.held))
        for_one_layer = not self._gathers_small and (self.alone or self.zero == 3)
        if not self._gathers_small:
            yield replace(single if for_one_layer else tensor, name=self._wide)
        if self.zero:
            in_place = self.zero < 3
            own = replace(stored.tensor, name=self.own, dtype=SMALL if self._gathers_small else None)
            if in_place and for_one_layer:
                own = replace(own, copies=(), first_indices=())
            yield replace(own, shard_of=whole if in_place else None)

    def prepare(self, gathers: Iterable[Op]) -> Iterator[Op]:
        """The ops at the start of a step.

        Parameters
        ----------
        gathers : ops from the rank's own part of the weights to `gathered`, with ZeRO 1 and 2
        """
        name = self.parameter.name
        if self._gathers_small:
            into = self.own if self.zero else self.held
            yield from cast_ops(name, name, into, small_columns(self.held), self._recipe)
        else:
            into = self.own if self.zero else self._wide
            yield Kernel(name=f"cast {name}", function="cast", into=(into,), sources=(name,))
        if self.zero in (1, 2):
            yield from gathers
        if self.zero < 3:
            yield from self.fill("")

    def fill(self, suffix: str) -> Iterator[Kernel]:
        """The ops that make the gathered weights small, and copy them along columns."""
        columns, label = small_columns(self.held), f"{self.parameter.name}{suffix}"
        if not self._gathers_small:
            yield from cast_ops(f"{label} small", self._wide, self.held, columns, self._recipe)
        if self._recipe.transposes:
            yield Kernel(name=f"{label} transpose", function="to_columns", into=(columns,), sources=(self.held,))
