"""Transformer architectures: the plain GPT, and the variants of Llama and others.

    plain GPT   LayerNorm, biases, GELU, one key head for each query head, learned positions, a shared vocabulary table
    Llama       RMSNorm, no biases, SwiGLU, grouped-query attention, rotary positions, two vocabulary tables

Columns that belong together are units that no axis cuts: a group of attention heads has its query heads, one key head
and one value head; a gated MLP has a gate and an up column beside each other for each inner column.

Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019; Shazeer, "GLU Variants Improve Transformer",
2020; Ainslie et al., "GQA", 2023; Su et al., "RoFormer", 2021 (rotary positions); Touvron et al., "LLaMA", 2023 (all of
them together).
"""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError

NormKind = Literal["layer", "rms"]
Positions = Literal["learned", "rotary", "none"]
ROTARY_BASE = 10000.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """Architecture of a transformer, without its sizes.

    Parameters
    ----------
    key_heads : key and value heads; 0 for as many as query heads
    gated : whether the MLP is SwiGLU, silu(gate) · up, instead of GELU
    norm : LayerNorm (`layer`), or RMSNorm (`rms`), which subtracts no mean and adds no β
    biases : whether products have biases
    positions : learned table, rotations of queries and keys, or none
    rotary_base : base of rotary positions; the longest wave is about 2π · base tokens
    shared_table : whether the embedding table also makes the logits

    Raises
    ------
    InputError : an invalid number or word
    """

    key_heads: int = 0
    gated: bool = False
    norm: NormKind = "layer"
    biases: bool = True
    positions: Positions = "learned"
    rotary_base: float = ROTARY_BASE
    shared_table: bool = True

    def __post_init__(self) -> None:
        if self.key_heads < 0:
            raise InputError(f"key_heads {self.key_heads}: a whole number from 0 is accepted (0: as many as heads)")
        for name, accepted in (("norm", get_args(NormKind)), ("positions", get_args(Positions))):
            if getattr(self, name) not in accepted:
                raise InputError(f"{name} {getattr(self, name)!r}: accepted are {', '.join(accepted)}")
        if not (isfinite(self.rotary_base) and self.rotary_base > 1):
            raise InputError(f"rotary_base {self.rotary_base}: a number above 1 is accepted")

    @property
    def options(self) -> dict[str, object]:
        """Fields that differ from the plain GPT, by name.

        >>> Architecture(gated=True, norm="rms").options
        {'gated': True, 'norm': 'rms'}
        """
        return {name: value for name, value in asdict(self).items() if value != getattr(PLAIN, name)}

    @property
    def words(self) -> tuple[str, ...]:
        """The differences from the plain GPT, as texts for a report.

        >>> ", ".join(LLAMA.words)
        'gated MLP, RMSNorm, no biases, rotary positions, two tables'
        """
        rotary = "" if self.rotary_base == ROTARY_BASE else f" of base {self.rotary_base:g}"
        differs_by_text = {
            f"{self.key_heads} key heads": self.key_heads > 0,
            "gated MLP": self.gated,
            "RMSNorm": self.norm == "rms",
            "no biases": not self.biases,
            f"rotary positions{rotary}": self.positions == "rotary",
            "no positions": self.positions == "none",
            "two tables": not self.shared_table,
        }
        return tuple(words for words, differs in differs_by_text.items() if differs)

    def key_value_heads(self, heads: int) -> int:
        """Key and value heads beside `heads` query heads."""
        return self.key_heads or heads

    def group(self, heads: int) -> int:
        """Query heads that share a key and a value head."""
        return heads // self.key_value_heads(heads)

    @property
    def up_columns(self) -> int:
        """Columns of the first MLP product for each inner column."""
        return 2 if self.gated else 1

    def refusal(self, hidden: int, heads: int) -> str:
        """Reason why this hidden size and number of heads are impossible; empty if they are possible."""
        if heads % self.key_value_heads(heads):
            return f"key_heads {self.key_heads}: must divide heads = {heads}"
        if self.positions == "rotary" and hidden // heads % 2:
            return f"rotary positions turn pairs of columns: hidden / heads must be even, and {hidden} / {heads} is odd"
        return ""


LARGEST_SIZE = 10**12
MOST = {"layers": 10_000, "steps": 10_000} | dict.fromkeys(
    ("hidden", "heads", "sequence", "vocabulary", "batch", "inner"), LARGEST_SIZE
)
"""Largest accepted sizes of a model and its training steps; the work of a prediction grows with layers and steps."""
PLAIN = Architecture()
LLAMA = Architecture(gated=True, norm="rms", biases=False, positions="rotary", shared_table=False)
ARCHITECTURES = {"gpt": PLAIN, "llama": LLAMA}


def check_sizes(model: object, subject: str = "") -> None:
    """Refuse a model with more layers, or with larger sizes, than a prediction takes in reasonable time.

    Parameters
    ----------
    model : object with the attributes of `MOST`; attributes that it lacks are not checked
    subject : beginning of the message

    Raises
    ------
    InputError : the size, its value and the largest that is accepted
    """
    for name, most in MOST.items():
        if (size := getattr(model, name, 0)) > most:
            raise InputError(f"{subject}{name} {size}: a whole number up to {most} is accepted")
