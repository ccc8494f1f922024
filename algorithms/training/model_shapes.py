"""Model shapes: the sizes of transformers, and the table of named models (GPT-3, Llama, …).

A shape is the size of a model, independent of training.  Schedules implement every `Architecture`.  For other features
(BLOOM's normalisation after the embedding, GPT-NeoX's parallel branches) the parameters are still counted exactly, and
`differences` says what a schedule does differently.

Source: `5b` to `640b`: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to Thousands of GPUs", arXiv
2305.13525 (640b: unverified); `gpt3-…`: Brown et al., "Language Models are Few-Shot Learners", 2020, table 2.1; its 24
heads for 1.3b and hidden size 5140 for 13b do not divide, so 16 heads and 5120 are used; `llama…`: Touvron et al.,
arXiv 2302.13971 and 2307.09288, and the published `config.json` files; "The Llama 3 Herd of Models", arXiv 2407.21783,
table 3.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.architecture import LLAMA, PLAIN, Architecture, check_sizes


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Size of a transformer.

    Parameters
    ----------
    name : name of the model
    layers, hidden, heads : number of layers, hidden size, query heads
    sequence : tokens of a sequence
    vocabulary : size of the vocabulary
    inner : MLP width; 0 for four times hidden
    architecture : differences from the plain GPT
    embedding_norm : whether a normalisation follows the embedding (BLOOM)
    otherwise : differences of a schedule from the published model, as texts for a report

    >>> ModelShape("gpt2", 12, 768, 12, 1024, 50257).parameters
    124439808
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    inner: int = 0
    architecture: Architecture = PLAIN
    embedding_norm: bool = False
    otherwise: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "sequence", "vocabulary"):
            if getattr(self, field) < 1:
                raise InputError(f"model {self.name}: {field} {getattr(self, field)}: a whole number from 1 is needed")
        check_sizes(self, f"model {self.name}: ")
        if self.hidden % self.heads and not self.architecture.head_columns:
            raise InputError(f"model {self.name}: heads {self.heads}: must divide hidden = {self.hidden}")
        if refusal := self.architecture.refusal(self.hidden, self.heads):
            raise InputError(f"model {self.name}: {refusal}")

    @property
    def mlp(self) -> int:
        """Width of the MLP."""
        return self.inner or 4 * self.hidden

    @property
    def key_value_heads(self) -> int:
        return self.architecture.key_value_heads(self.heads)

    @property
    def head(self) -> int:
        """Columns of a head."""
        return self.architecture.head(self.hidden, self.heads)

    @property
    def attended(self) -> int:
        """Columns of the output of attention, before the product that projects it."""
        return self.heads * self.head

    @property
    def up(self) -> int:
        """Columns of the first MLP product; gate and up together if it is gated."""
        return self.architecture.up_columns * self.mlp

    @property
    def qkv(self) -> int:
        """Columns of queries, keys and values together."""
        return self.head * (self.heads + 2 * self.key_value_heads)

    @property
    def products(self) -> int:
        """Weight elements of a layer's products."""
        return self.hidden * (self.qkv + self.attended + self.up + self.mlp)

    @property
    def layer_parameters(self) -> int:
        architecture = self.architecture
        biases = self.qkv + 2 * self.hidden + self.up if architecture.biases else 0
        if architecture.qkv_biases:
            biases = self.qkv
        norms = (4 if architecture.norm_place == "both" else 2) * self._normalisation
        return self.products + biases + norms + self._query_key_norm

    @property
    def _query_key_norm(self) -> int:
        """Parameters of the normalisation of queries and keys of a layer."""
        heads = {"none": 0, "head": 2, "row": self.heads + self.key_value_heads}
        return heads[self.architecture.qk_norm] * self.head

    @property
    def table(self) -> int:
        """Elements of one vocabulary table."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Number of parameters: 12 L h² (1 + 13/(12 h) + (V + s)/(12 L h)) + 2 h for the plain GPT."""
        tables = self.table * (1 if self.architecture.shared_table else 2)
        ends = tables + (self.sequence * self.hidden if self.architecture.positions == "learned" else 0)
        return self.layers * self.layer_parameters + ends + self._normalisation * (2 if self.embedding_norm else 1)

    @property
    def _normalisation(self) -> int:
        return self.hidden * (2 if self.architecture.norm == "layer" else 1)

    @property
    def differences(self) -> tuple[str, ...]:
        """Differences of a schedule from the published model, as texts for a report."""
        norm = ("no normalisation follows the embedding",) if self.embedding_norm else ()
        return (*norm, *self.otherwise)


def _gpt(name: str, layers: int, hidden: int, heads: int, vocabulary: int = 51200, sequence: int = 2048) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, sequence, vocabulary)


def _llama(
    name: str, sizes: tuple[int, int, int, int], sequence: int, key_heads: int = 0, words: int = 32000
) -> ModelShape:
    layers, hidden, heads, inner = sizes
    base = LLAMA3_ROTARY_BASE if name.startswith("llama3") else LLAMA.rotary_base
    architecture = replace(LLAMA, key_heads=key_heads, rotary_base=base)
    return ModelShape(name, layers, hidden, heads, sequence, words, inner, architecture)


GPT3_WORDS, LLAMA3_WORDS = 50257, 128256
LLAMA3_ROTARY_BASE = 500_000.0
SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _gpt("tiny", 2, 64, 8, vocabulary=256, sequence=32),
        _llama("tiny-llama", (2, 64, 8, 128), 32, 4, 256),
        _gpt("5b", 24, 4096, 32),
        _gpt("10b", 32, 5120, 40),
        _gpt("20b", 32, 7168, 56),
        _gpt("40b", 38, 9216, 72),
        _gpt("60b", 56, 9216, 72),
        _gpt("80b", 42, 12288, 96),
        _gpt("160b", 84, 12288, 96),
        _gpt("320b", 96, 16384, 128),
        _gpt("640b", 192, 16384, 128),
        _gpt("gpt3-125m", 12, 768, 12, GPT3_WORDS),
        _gpt("gpt3-350m", 24, 1024, 16, GPT3_WORDS),
        _gpt("gpt3-760m", 24, 1536, 16, GPT3_WORDS),
        _gpt("gpt3-1.3b", 24, 2048, 16, GPT3_WORDS),
        _gpt("gpt3-2.7b", 32, 2560, 32, GPT3_WORDS),
        _gpt("gpt3-6.7b", 32, 4096, 32, GPT3_WORDS),
        _gpt("gpt3-13b", 40, 5120, 40, GPT3_WORDS),
        _gpt("gpt3-175b", 96, 12288, 96, GPT3_WORDS),
        _llama("llama-7b", (32, 4096, 32, 11008), 2048),
        _llama("llama-13b", (40, 5120, 40, 13824), 2048),
        _llama("llama-30b", (60, 6656, 52, 17920), 2048),
        _llama("llama-65b", (80, 8192, 64, 22016), 2048),
        _llama("llama2-7b", (32, 4096, 32, 11008), 4096),
        _llama("llama2-13b", (40, 5120, 40, 13824), 4096),
        _llama("llama2-70b", (80, 8192, 64, 28672), 4096, 8),
        _llama("llama3-8b", (32, 4096, 32, 14336), 8192, 8, LLAMA3_WORDS),
        _llama("llama3-70b", (80, 8192, 64, 28672), 8192, 8, LLAMA3_WORDS),
        _llama("llama3-405b", (126, 16384, 128, 53248), 8192, 8, LLAMA3_WORDS),
    )
}
