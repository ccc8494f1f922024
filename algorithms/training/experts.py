"""Mixtures of experts: the experts of a model, as values; `expert_layer.py` has the ops of a layer.

Source: Jiang et al., "Mixtral of Experts", arXiv 2401.04088 (normalised shares); DeepSeek-AI, "DeepSeek-V3 Technical
Report", arXiv 2412.19437, section 2.1.2 (sigmoid, shared experts); Dai et al., "DeepSeekMoE", arXiv 2401.06066
(fine-grained experts); Qwen Team, "Qwen2 Technical Report", arXiv 2407.10671, and transformers 4.57,
Qwen2MoeSparseMoeBlock (gated shared experts); OpenAI, arXiv 2508.10925, and GptOssExperts (biases); Lepikhin et al.,
"GShard", ICLR 2021, section 2.2, and NVIDIA, Megatron Core, megatron.core.transformer.moe.moe_utils (capacity, dropped
by position).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, inf, isfinite, isinf
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.units import parse_integer

Router = Literal["softmax", "sigmoid"]
DENSE_LAYER, EXPERT_LAYER = "dense_layer", "expert_layer"
"""Loops over the layers of either kind, if a model has both."""
EXPERTS, ROUTERS, STAGES = "experts", "routers", "stages"
"""Dimensions of the experts, of the ranks that route tokens to them, and of the pipeline stages."""


@dataclass(frozen=True, slots=True, repr=False)
class Experts(ShortRepr):
    """The mixture of experts of a model: a router sends each token to a few of many MLPs.

    Parameters
    ----------
    count : number of experts of a layer
    chosen : experts that process a token
    inner : width of an expert
    shared : width of the MLP that processes every token beside them; 0 for none
    shared_gate : whether the sigmoid of a product with one column multiplies the output of the shared MLP
    dense_layers : numbers of the layers with a dense MLP instead
    every : period of the layers with experts: layers n - 1, 2 n - 1, … may have some
    router : function of the scores
    normalised : whether the shares of a token's experts add up to 1
    scale : factor on the shares
    balance : coefficient of the auxiliary loss; 0 for none
    biases : whether the router and the products of the experts have biases
    capacity : rows that an expert takes from a rank, as a multiple of the mean expert's; infinite if no row is dropped
    groups : equal groups of experts, of which a token chooses some before its experts
    chosen_groups : groups that a token chooses its experts from

    Raises
    ------
    InputError : more chosen experts than experts, or a number or word that is not accepted
    """

    count: int
    chosen: int
    inner: int
    shared: int = 0
    shared_gate: bool = False
    dense_layers: frozenset[int] = frozenset()
    every: int = 1
    router: Router = "softmax"
    normalised: bool = True
    scale: float = 1.0
    balance: float = 0.0
    biases: bool = False
    capacity: float = inf
    groups: int = 1
    chosen_groups: int = 1

    def __post_init__(self) -> None:
        for name, number in (("experts", self.count), ("expert_ffn", self.inner)):
            if number < 1:
                raise InputError(f"{name} {number}: a whole number from 1 is accepted")
        if not 1 <= self.chosen <= self.count:
            raise InputError(f"top_k {self.chosen}: a whole number from 1 to experts = {self.count} is accepted")
        self._check_shared()
        if self.router not in get_args(Router):
            raise InputError(f"router {self.router!r}: accepted are {', '.join(get_args(Router))}")
        if not (isfinite(self.scale) and self.scale > 0):
            raise InputError(f"routed_scale {self.scale}: a number above 0 is accepted")
        if not (isfinite(self.balance) and self.balance >= 0):
            raise InputError(f"aux_loss {self.balance}: a number from 0 is accepted")
        self._check_groups()
        if not self.capacity >= 1:
            raise InputError(f"capacity {self.capacity:g}: a number from 1 is accepted; leave it out to drop no token")

    def _check_shared(self) -> None:
        """Checks the period of the layers, and the shared MLP with its gate."""
        if self.every < 1:
            raise InputError(f"experts_every {self.every}: a whole number from 1 is accepted")
        if self.shared < 0:
            raise InputError(f"shared_ffn {self.shared}: a whole number from 0 is accepted")
        if self.shared_gate and not self.shared:
            raise InputError("shared_gate yes: a shared_ffn above 0, the width of what it weighs, is needed beside it")

    def _check_groups(self) -> None:
        """Checks that the chosen groups have as many experts as a token needs."""
        if self.groups < 1 or self.count % self.groups:
            raise InputError(f"expert_groups {self.groups}: a number that divides experts = {self.count} is accepted")
        least = -(-self.chosen * self.groups // self.count)
        if not least <= self.chosen_groups <= self.groups:
            raise InputError(
                f"top_groups {self.chosen_groups}: a whole number from {least} (for top_k = {self.chosen}) to "
                f"expert_groups = {self.groups} is accepted"
            )

    @property
    def options(self) -> dict[str, object]:
        """Values of `EXPERT_KEYS` that a model of these experts needs, by name.

        >>> Experts(8, 2, 16, balance=0.01).options
        {'experts': 8, 'top_k': 2, 'expert_ffn': 16, 'aux_loss': 0.01}
        """
        values = {key: getattr(self, name) for key, name in EXPERT_KEYS.items()}
        values["dense_layers"] = str(LayerNumbers(self.dense_layers))
        return {key: value for key, value in values.items() if key in NEEDED_KEYS or value != EXPERT_DEFAULTS[key]}

    def dense(self, layers: int) -> tuple[bool, ...]:
        """Whether each of a number of layers has a dense MLP; empty if none has one.

        >>> Experts(8, 2, 16, dense_layers=frozenset({1}), every=2).dense(4)
        (True, True, True, False)

        Raises
        ------
        InputError : a dense layer that the model does not have, or no layer with experts
        """
        beyond = [layer for layer in sorted(self.dense_layers) if layer >= layers]
        if beyond:
            raise InputError(f"dense_layers {LayerNumbers(self.dense_layers)}: the model has layers 0 to {layers - 1}")
        are_dense = tuple(layer in self.dense_layers or (layer + 1) % self.every > 0 for layer in range(layers))
        if all(are_dense):
            raise InputError(f"dense_layers and experts_every leave none of {layers} layers with experts")
        return are_dense if any(are_dense) else ()

    def routed_layers(self, layers: int) -> int:
        """How many of a number of layers have experts.

        >>> Experts(8, 2, 16, dense_layers=frozenset({1}), every=2).routed_layers(4)
        1
        """
        return layers - sum(self.dense(layers))

    def place(self, layer: int, layers: int) -> tuple[str, int]:
        """Loop over the layers like this one, and the number of the layer among them.

        >>> [Experts(8, 2, 16, dense_layers=frozenset({0})).place(layer, 3) for layer in range(3)]
        [('dense_layer', 0), ('expert_layer', 0), ('expert_layer', 1)]
        """
        dense = self.dense(layers)
        if not dense:
            return "layer", layer
        return DENSE_LAYER if dense[layer] else EXPERT_LAYER, dense[:layer].count(dense[layer])

    def parameters(self, hidden: int, experts: int, up_columns: int = 2) -> int:
        """Parameters of the router, the shared MLP and a number of experts of one layer.

        Parameters
        ----------
        hidden : hidden size
        experts : number of experts that are counted
        up_columns : columns of the first product of an MLP for each inner column: 2 if it is gated
        """
        biases = self.count + experts * (up_columns * self.inner + hidden) if self.biases else 0
        return self.products(hidden, experts, up_columns) + biases

    def products(self, hidden: int, experts: int, up_columns: int = 2) -> int:
        """Weight elements of the products of one layer: parameters without biases.

        >>> Experts(8, 2, 16, biases=True).parameters(4, 8) - Experts(8, 2, 16).products(4, 8)
        296
        """
        gate = hidden if self.shared_gate else 0
        return hidden * self.count + gate + (up_columns + 1) * hidden * (experts * self.inner + self.shared)

    @property
    def sizes(self) -> dict[str, int]:
        """Lengths of the dimensions of a layer, by letter."""
        return {
            EXPERTS: self.count,
            "chosen": self.chosen,
            "expert inner": self.inner,
            **({"shared inner": self.shared} if self.shared else {}),
        }

    def most_rows(self, rows: int) -> int:
        """Most rows that an expert takes, of all rows that a rank sends to experts at once.

            ⌈capacity · rows / experts⌉

        >>> Experts(8, 2, 16, capacity=1.25).most_rows(2 * 20), Experts(8, 2, 16).most_rows(2 * 20)
        (7, 40)
        """
        return most_rows(self.capacity, rows, self.count)

    def taken(self, loads: tuple[int, ...]) -> tuple[int, ...]:
        """Rows that experts take of those that routers send them, in the same unit.

        >>> Experts(4, 1, 8, capacity=1.5).taken((6, 0, 1, 1))
        (3, 0, 1, 1)
        """
        most = self.most_rows(sum(loads))
        return tuple(min(load, most) for load in loads)

    def check(self, grid: Grid) -> None:
        """Checks that the ranks along expert can share out the experts, and those along expert_tensor cut each.

        Raises
        ------
        InputError : ranks that do not divide the experts or their width, or biases of experts that ranks cut
        """
        if self.count % grid.expert:
            divisors = ", ".join(str(ranks) for ranks in range(1, self.count + 1) if not self.count % ranks)
            raise InputError(
                f"grid expert={grid.expert}: the ranks along expert share out the experts, so it must divide "
                f"experts = {self.count}: accepted are {divisors}"
            )
        tensor = grid.expert_tensor
        if self.inner % tensor:
            raise InputError(
                f"grid expert_tensor={tensor}: its ranks cut the columns of each expert, so it must divide "
                f"expert_ffn = {self.inner}"
            )
        if self.biases and tensor > 1:
            raise InputError(
                f"grid expert_tensor={tensor}: no schedule cuts experts with biases: expert_tensor=1 is accepted, and "
                "so is expert_biases=no"
            )


def most_rows(capacity: float, rows: int, experts: int) -> int:
    """Most rows of one of a number of experts, of all rows that a rank sends to experts at once."""
    return rows if isinf(capacity) else min(rows, ceil(Fraction(str(capacity)) * rows / experts))


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """The rows that experts are expected to have in a prediction.

    Parameters
    ----------
    zipf : exponent S of Zipf's law: expert i, from 1, has a share in proportion to i^-S
    counts : rows of each expert, in any unit, instead

    >>> ExpertLoad(zipf=1.0).of(4)
    (1000000, 500000, 333333, 250000)
    >>> str(ExpertLoad(counts=(3, 1))), str(ExpertLoad(zipf=0.5))
    ('3,1', 'zipf:0.5')

    Raises
    ------
    InputError : an exponent below 0, a count below 0, or only zeros
    """

    zipf: float = 0.0
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (isfinite(self.zipf) and 0 <= self.zipf <= STEEPEST):
            raise InputError(f"expert-load zipf:{self.zipf}: an exponent from 0 to {STEEPEST} is accepted")
        if self.counts and (min(self.counts) < 0 or not sum(self.counts)):
            raise InputError(f"expert-load {self}: whole numbers from 0 are accepted, of which one is above 0")

    def of(self, experts: int) -> tuple[int, ...]:
        """The rows of each of a number of experts, in any unit.

        Raises
        ------
        InputError : counts of another number of experts
        """
        if not self.counts:
            return tuple(round(WHOLE_LOAD * number**-self.zipf) for number in range(1, experts + 1))
        if len(self.counts) != experts:
            raise InputError(
                f"expert-load has counts of {len(self.counts)} experts: the model has {experts}, and each needs a count"
            )
        return self.counts

    def __str__(self) -> str:
        return ",".join(map(str, self.counts)) if self.counts else f"zipf:{self.zipf:g}"


STEEPEST = 8
"""Largest accepted exponent: nearly all rows have one expert."""
WHOLE_LOAD = 1_000_000
"""Rows of the first expert, in the unit of Zipf's law."""


def parse_expert_load(text: str) -> ExpertLoad | None:
    """The load that a text describes; None for even loads.

    >>> parse_expert_load("balanced"), parse_expert_load("zipf:1.5").zipf, parse_expert_load("8,4,4").counts
    (None, 1.5, (8, 4, 4))

    Raises
    ------
    InputError : another text than balanced, zipf:S, counts, or the path of a file of counts
    """
    if text in ("", "balanced"):
        return None
    word, _, exponent = text.partition(":")
    if word == "zipf":
        try:
            return ExpertLoad(zipf=float(exponent))
        except ValueError:
            raise InputError(f"expert-load {text[:80]!r}: zipf:S needs a number S from 0") from None
    numbers = text if set(text) <= set("0123456789,") else _counts_in_file(text)
    counts = [parse_integer(number) for number in numbers.replace(",", " ").split()]
    if not counts or None in counts:
        raise InputError(f"expert-load {text[:80]!r}: a count for each expert is needed: whole numbers, as 8,4,4,0")
    return ExpertLoad(counts=tuple(count for count in counts if count is not None))


def _counts_in_file(path: str) -> str:
    """The numbers in a file, in brackets or not."""
    from quadrille.algorithms.formats.input_files import read_text

    try:
        return read_text(path, MOST_BYTES).strip().strip("[]")
    except OSError as error:
        raise InputError(
            f"expert-load {path[:80]!r}: accepted are balanced, zipf:S, counts, and a file of counts ({error.strerror})"
        ) from None


MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """Numbers of layers, and their text: how many from the first, or ranges of numbers.

    >>> str(LayerNumbers(frozenset({0, 1, 2}))), str(LayerNumbers(frozenset({1, 4, 5})))
    ('3', '1-1+4-5')
    """

    numbers: frozenset[int]

    def __str__(self) -> str:
        ordered = sorted(self.numbers)
        if ordered == list(range(len(ordered))):
            return str(len(ordered))
        firsts = [number for number in ordered if number - 1 not in self.numbers]
        lasts = [number for number in ordered if number + 1 not in self.numbers]
        return "+".join(f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))


def parse_layer_numbers(text: str) -> frozenset[int]:
    """The layers that a text names.

    >>> sorted(parse_layer_numbers("3")), sorted(parse_layer_numbers("1-1+4-5"))
    ([0, 1, 2], [1, 4, 5])

    Raises
    ------
    InputError : another text
    """
    if (first := parse_integer(text)) is not None and first <= MOST_LAYERS:
        return frozenset(range(first))
    layers = set[int]()
    for item in text.split("+"):
        first, last = (parse_integer(end) for end in item.partition("-")[::2])
        if first is None or last is None or not first <= last <= MOST_LAYERS:
            raise InputError(
                f"dense_layers={text[:40]}: a number of first layers is accepted, or ranges of layers such as 0-2+5-5"
            )
        layers |= {*range(first, last + 1)}
    return frozenset(layers)


MOST_LAYERS = 100_000
EXPERT_KEYS = {
    "experts": "count",
    "top_k": "chosen",
    "expert_ffn": "inner",
    "shared_ffn": "shared",
    "shared_gate": "shared_gate",
    "dense_layers": "dense_layers",
    "experts_every": "every",
    "router": "router",
    "normalised_top_k": "normalised",
    "routed_scale": "scale",
    "aux_loss": "balance",
    "expert_biases": "biases",
    "capacity": "capacity",
    "expert_groups": "groups",
    "top_groups": "chosen_groups",
}
"""Fields of `Experts` by the names that `--gpt` and records have for them."""
NEEDED_KEYS = ("experts", "top_k", "expert_ffn")
EXPERT_DEFAULTS: dict[str, object] = {key: getattr(Experts(1, 1, 1), name) for key, name in EXPERT_KEYS.items()}
EXPERT_DEFAULTS["dense_layers"] = "0"


def changed_experts(experts: Experts | None, values: Mapping[str, object]) -> Experts | None:
    """Returns the experts with some of `EXPERT_KEYS` changed; None if there are no experts and no values.

    >>> changed_experts(None, {"experts": 4, "top_k": 1, "expert_ffn": 8}).count
    4

    Raises
    ------
    InputError : a value that is missing or not accepted
    """
    if not values:
        return experts
    changes = {EXPERT_KEYS[key]: value for key, value in values.items()}
    if "dense_layers" in changes:
        changes["dense_layers"] = parse_layer_numbers(str(changes["dense_layers"]))
    if experts is None:
        if missing := [key for key in NEEDED_KEYS if key not in values]:
            raise InputError(f"{missing[0]} is missing: a model of experts needs {', '.join(NEEDED_KEYS)}")
        return Experts(**changes)  # type: ignore[arg-type]
    return replace(experts, **changes)  # type: ignore[arg-type]
