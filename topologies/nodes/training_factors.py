"""Factors from kernels timed alone in inference frameworks (`kernel_tables.py`) to the same kernels of training.

A training step runs large products one after the other for minutes, with values of training, and warms the GPU until
power limits its clock.  A benchmark of one kernel does not.  The sum of a weight gradient in 32 bits is an op of its
own, so all products have one factor; with that sum, SimuMax measured 1.13 on A100 and 1.43 on B200.  Attention has
factors of its own (`attention_kernels.py`).

Each factor is the median of measured / table over the products of one source with at least 10^10 flop.
The backward pass of experts is the sum of two medians, of 4 grouped products on A100 and of 20 on B200.
`studies/kernel_tables` prints these medians, and judges the factors on other sources.
"""

from dataclasses import dataclass

SIMUMAX = "MooreThreads/SimuMax 4dcaae5, configs/system"


@dataclass(frozen=True, slots=True)
class TrainingFactors:
    """Factors from the seconds of a table to those of training.

    Parameters
    ----------
    product : products in all passes
    expert_backward : backward pass of experts' grouped products / their forward pass
    source : source of the factors

    Raises
    ------
    ValueError : a factor of 0 or less, or a backward pass of at most the forward pass

    >>> training_factors("b200-sxm").product > training_factors("a100-sxm").product > training_factors("").product
    True
    """

    product: float = 1.0
    expert_backward: float = 2.0
    source: str = "no table"

    @property
    def grouped_weight_gradient(self) -> float:
        """Factor of experts' weight gradients: what the backward pass takes beside input gradients."""
        return self.product * (self.expert_backward - 1)

    def __post_init__(self) -> None:
        if min(self.product, self.expert_backward - 1) <= 0:
            raise ValueError(f"training factors {self.product} and {self.expert_backward}: above 0 and 1 is accepted")


A100_FACTORS = TrainingFactors(1.065, 2.17, f"{SIMUMAX}, a100_pcie: medians of 61 products of each of two layouts")
BLACKWELL_FACTORS = TrainingFactors(
    1.35, 2.55, f"{SIMUMAX}, b200_bf16_ceperm: medians of 143 products of each of two layouts"
)
FACTORS: dict[str, TrainingFactors] = {
    "a100-sxm": A100_FACTORS,
    "h100-sxm": A100_FACTORS,
    "h200-sxm": A100_FACTORS,
    "b200-sxm": BLACKWELL_FACTORS,
    "b300-sxm": BLACKWELL_FACTORS,
    "gb200": BLACKWELL_FACTORS,
    "gb300": BLACKWELL_FACTORS,
}
"""Factors by the name of the table.  H100 and H200 have those of A100, B300, GB200 and GB300 those of B200, because no
benchmark of training kernels on these GPUs is known to us: assumptions."""


def training_factors(table: str) -> TrainingFactors:
    """The factors of a table; 1 for another name."""
    return FACTORS.get(table, TrainingFactors())
