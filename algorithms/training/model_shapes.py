"""Model shapes: the sizes of transformers, and the table of named models (GPT-3, Llama, …).

A shape is the size of a model, independent of training.  Schedules implement every `Architecture`.  Other features of a
file (BLOOM's ALiBi) are approximations, which a user must accept.

Source: `5b` to `640b`: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to Thousands of GPUs", arXiv
2305.13525 (640b: unverified); `gpt3-…`: Brown et al., "Language Models are Few-Shot Learners", 2020, table 2.1; its 24
heads for 1.3b and hidden size 5140 for 13b do not divide, so 16 heads and 5120 are used; `llama…`: Touvron et al.,
arXiv 2302.13971 and 2307.09288, and the published `config.json` files; "The Llama 3 Herd of Models", arXiv 2407.21783,
table 3. Sizes of the others are those of the `config.json` files that their authors published on huggingface.co:
meta-llama/Llama-3.2-…, mistralai/Mistral-7B-v0.1, mistralai/Mixtral-8x…-v0.1, Qwen/Qwen2.5-…, Qwen/Qwen3-…,
google/gemma-2-…, google/gemma-3-…-pt (the language model), microsoft/Phi-3-…-4k-instruct, microsoft/phi-4,
microsoft/Phi-4-mini-instruct, allenai/OLMo-2-…, deepseek-ai/DeepSeek-V2, -V2-Lite and -V3 (without the layers that
predict further tokens), moonshotai/Kimi-K2-Base. Their sequences are those of pre-training before an extension:
"Qwen2.5 Technical Report", arXiv 2412.15115, section 3.2; "Qwen3 Technical Report", arXiv 2505.09388, section 3.2;
Gemma 2, arXiv 2408.00118; Gemma 3, arXiv 2503.19786, section 2; "Phi-3 Technical Report", arXiv 2404.14219; "Phi-4
Technical Report", arXiv 2412.08905, section 3; "2 OLMo 2 Furious", arXiv 2501.00656.
"""

from dataclasses import dataclass, replace
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.training.architecture import (
    GEMMA,
    GPT_OSS,
    LLAMA,
    OLMO,
    PLAIN,
    QWEN2,
    QWEN3,
    Architecture,
    check_sizes,
)
from quadrille.algorithms.training.experts import Experts


@dataclass(frozen=True, slots=True, repr=False)
class ModelShape(ShortRepr):
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
    remarks : differences from the published model that change no operation, as texts for a report
    approximations : keys of a file that a schedule cannot follow, each with what the schedule does instead
    experts : mixture of experts; None for a dense model

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
    remarks: tuple[str, ...] = ()
    approximations: tuple[str, ...] = ()
    experts: Experts | None = None

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
        return self.heads * self.architecture.value(self.head)

    @property
    def scored(self) -> int:
        """Columns of all queries."""
        return self.heads * self.head

    @property
    def up(self) -> int:
        """Columns of the first MLP product; gate and up together if it is gated."""
        return self.architecture.up_columns * self.mlp

    @property
    def qkv(self) -> int:
        """Columns of queries, keys and values together."""
        return self.scored + (self.head + self.architecture.value(self.head)) * self.key_value_heads

    @property
    def products(self) -> int:
        """Weight elements of a layer's products."""
        gate = self.attended if self.architecture.gated_attention else 0
        return self._projections + self.hidden * (gate + self.attended + self.up + self.mlp)

    @property
    def _projections(self) -> int:
        """Weight elements of the products from the stream to queries, keys and values."""
        architecture = self.architecture
        if not architecture.key_rank:
            return self.hidden * self.qkv
        queries, low = self.scored, architecture.query_rank
        pairs = self.scored + self.attended - self.heads * architecture.rotary_columns
        keys = self.hidden * (architecture.key_rank + architecture.rotary_columns) + architecture.key_rank * pairs
        return keys + (low * (self.hidden + queries) if low else self.hidden * queries)

    @property
    def products_of_layers(self) -> int:
        """Weight elements that a token uses in the products of all layers: those of the chosen experts."""
        if self.experts is None:
            return self.layers * self.products
        active = self.experts.products(self.hidden, self.experts.chosen, self.architecture.up_columns)
        with_experts = self.experts.routed_layers(self.layers)
        return self.layers * self.products + with_experts * (active - self.hidden * (self.up + self.mlp))

    @property
    def layer_parameters(self) -> int:
        architecture = self.architecture
        gate = self.attended if architecture.gated_attention else 0
        biases = self.qkv + gate + 2 * self.hidden + self.up if architecture.biases else 0
        if architecture.qkv_biases:
            biases = self.qkv
        count = 1 if architecture.branches == "shared" else 4 if architecture.norm_place == "both" else 2
        sinks = self.heads if architecture.sinks else 0
        return self.products + biases + count * self._normalisation + self._query_key_norm + self._latent_norms + sinks

    @property
    def _latent_norms(self) -> int:
        """Parameters of the normalisations of the latents of a layer."""
        vectors = 2 if self.architecture.norm == "layer" else 1
        return vectors * (self.architecture.key_rank + self.architecture.query_rank)

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
        return self._parameters(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Number of parameters that a token uses: all of a dense model, those of the chosen experts of others."""
        return self._parameters(self.experts.chosen if self.experts else 0)

    def _parameters(self, experts: int) -> int:
        """Number of parameters with a number of experts in each layer with experts."""
        tables = self.table * (1 if self.architecture.shared_table else 2)
        ends = tables + (self.sequence * self.hidden if self.architecture.positions == "learned" else 0)
        layers = self.layers * self.layer_parameters
        if self.experts:
            dense_mlp = self.hidden * (self.up + self.mlp)
            dense_mlp += self.up + self.hidden if self.architecture.biases else 0
            with_experts = self.experts.routed_layers(self.layers)
            layers += with_experts * (
                self.experts.parameters(self.hidden, experts, self.architecture.up_columns) - dense_mlp
            )
        return layers + ends + self._normalisation * (2 if self.embedding_norm else 1)

    @property
    def _normalisation(self) -> int:
        return self.hidden * (2 if self.architecture.norm == "layer" else 1)

    @property
    def differences(self) -> tuple[str, ...]:
        """Differences of a schedule from the published model, as texts for a report."""
        return (*self.approximations, *self.remarks)

    def check_approximations(self, *, accepted: bool) -> None:
        """Checks that a schedule can follow every key of a file, or that approximations are accepted.

        Raises
        ------
        InputError : names the key, and what the schedule does instead
        """
        if self.approximations and not accepted:
            more = f" (and {len(self.approximations) - 1} more)" if self.approximations[1:] else ""
            raise InputError(f"model {self.name}: {self.approximations[0]}{more}; --approximate goes on with that")


def _gpt(name: str, layers: int, hidden: int, heads: int, vocabulary: int = 51200, sequence: int = 2048) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, sequence, vocabulary)


def _llama(
    name: str, sizes: tuple[int, int, int, int], sequence: int, key_heads: int = 0, words: int = 32000
) -> ModelShape:
    layers, hidden, heads, inner = sizes
    base = LLAMA3_ROTARY_BASE if name.startswith("llama3") else LLAMA.rotary_base
    architecture = replace(LLAMA, key_heads=key_heads, rotary_base=base)
    return ModelShape(name, layers, hidden, heads, sequence, words, inner, architecture)


def _dense(name: str, sizes: str, sequence: int, words: int, architecture: Architecture, **traits: Any) -> ModelShape:
    """The shape of a Llama-like model; `sizes` are layers, hidden size, query heads, key heads and MLP width."""
    layers, hidden, heads, key_heads, inner = map(int, sizes.split())
    whole = replace(architecture, key_heads=key_heads, **traits)
    return ModelShape(name, layers, hidden, heads, sequence, words, inner, whole)


def _of_experts(
    name: str, sizes: str, sequence: int, words: int, architecture: Architecture, experts: Experts
) -> ModelShape:
    """The shape of a Llama-like model with experts; `sizes` are as in `_dense`, with the width of an expert."""
    return replace(_dense(name, sizes, sequence, words, architecture), experts=experts)


def _gemma3(name: str, sizes: str, words: int = 262208, **traits: Any) -> ModelShape:
    return _dense(f"gemma-3-{name}", sizes, 32768, words, GEMMA3, **traits)


GPT3_WORDS, LLAMA3_WORDS = 50257, 128256
LLAMA3_ROTARY_BASE = 500_000.0
QWEN25 = replace(QWEN2, rotary_base=1e6)
NAMED_QWEN3 = replace(QWEN3, head_columns=128, rotary_base=1e6)
NAMED_GEMMA = replace(GEMMA, head_columns=256)
GEMMA2 = replace(NAMED_GEMMA, window=4096, global_every=2, score_cap=50.0, logit_cap=30.0, score_columns=256.0)
GEMMA3 = replace(
    NAMED_GEMMA,
    qk_norm="head",
    window=1024,
    global_every=6,
    score_columns=256.0,
    rotary_base=1e6,
    local_rotary_base=1e4,
)
OLMO2 = replace(OLMO, rotary_base=500_000.0)
LLAMA32 = replace(LLAMA, shared_table=True, rotary_base=LLAMA3_ROTARY_BASE)
PHI3_WINDOW = 2047
MIXTRAL = replace(LLAMA, rotary_base=1e6)
MIXTRAL_LOSS, QWEN3_LOSS = 0.02, 0.001
"""Coefficients of the auxiliary loss in the `config.json` files."""
DEEPSEEK = replace(
    LLAMA, key_rank=512, query_rank=1536, head_columns=192, rotary_columns=64, value_columns=128, rotary_base=1e4
)
KIMI_K2 = replace(DEEPSEEK, rotary_base=5e4)
DEEPSEEK_LITE = replace(DEEPSEEK, query_rank=0)
DEEPSEEK_LITE_EXPERTS = Experts(64, 6, 1408, 2 * 1408, dense_layers=frozenset({0}), normalised=False)
DEEPSEEK_V2_EXPERTS = Experts(160, 6, 1536, 2 * 1536, dense_layers=frozenset({0}), normalised=False, scale=16.0)
DEEPSEEK_V3_EXPERTS = Experts(
    256, 8, 2048, 2048, dense_layers=frozenset({0, 1, 2}), router="sigmoid", scale=2.5, groups=8, chosen_groups=4
)
NAMED_GPT_OSS = replace(GPT_OSS, head_columns=64, window=128, global_every=2, rotary_base=150_000.0)
GPT_OSS_LOSS = 0.9
QWEN15_EXPERTS = Experts(60, 4, 1408, 5632, shared_gate=True, normalised=False, balance=QWEN3_LOSS)
KIMI_K2_EXPERTS = Experts(384, 8, 2048, 2048, dense_layers=frozenset({0}), router="sigmoid", scale=2.827)
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
        _dense("llama3.2-1b", "16 2048 32 8 8192", 8192, LLAMA3_WORDS, LLAMA32),
        _dense("llama3.2-3b", "28 3072 24 8 8192", 8192, LLAMA3_WORDS, LLAMA32),
        _dense("mistral-7b", "32 4096 32 8 14336", 8192, 32000, LLAMA, window=4096),
        _dense("qwen2.5-0.5b", "24 896 14 2 4864", 4096, 151936, QWEN25, shared_table=True),
        _dense("qwen2.5-1.5b", "28 1536 12 2 8960", 4096, 151936, QWEN25, shared_table=True),
        _dense("qwen2.5-3b", "36 2048 16 2 11008", 4096, 151936, QWEN25, shared_table=True),
        _dense("qwen2.5-7b", "28 3584 28 4 18944", 4096, 152064, QWEN25),
        _dense("qwen2.5-14b", "48 5120 40 8 13824", 4096, 152064, QWEN25),
        _dense("qwen2.5-32b", "64 5120 40 8 27648", 4096, 152064, QWEN25),
        _dense("qwen2.5-72b", "80 8192 64 8 29568", 4096, 152064, QWEN25),
        _dense("qwen3-4b", "36 2560 32 8 9728", 4096, 151936, NAMED_QWEN3, shared_table=True),
        _dense("qwen3-8b", "36 4096 32 8 12288", 4096, 151936, NAMED_QWEN3),
        _dense("qwen3-14b", "40 5120 40 8 17408", 4096, 151936, NAMED_QWEN3),
        _dense("qwen3-32b", "64 5120 64 8 25600", 4096, 151936, NAMED_QWEN3),
        _of_experts(
            "qwen3-30b-a3b", "48 2048 32 4 768", 4096, 151936, NAMED_QWEN3, Experts(128, 8, 768, balance=QWEN3_LOSS)
        ),
        _of_experts(
            "qwen3-235b-a22b", "94 4096 64 4 1536", 4096, 151936, NAMED_QWEN3, Experts(128, 8, 1536, balance=QWEN3_LOSS)
        ),
        _of_experts(
            "mixtral-8x7b", "32 4096 32 8 14336", 8192, 32000, MIXTRAL, Experts(8, 2, 14336, balance=MIXTRAL_LOSS)
        ),
        _of_experts(
            "mixtral-8x22b", "56 6144 48 8 16384", 8192, 32000, MIXTRAL, Experts(8, 2, 16384, balance=MIXTRAL_LOSS)
        ),
        _of_experts("qwen1.5-moe-a2.7b", "24 2048 16 16 5632", 4096, 151936, QWEN25, QWEN15_EXPERTS),
        _of_experts(
            "gpt-oss-20b",
            "24 2880 64 8 2880",
            4096,
            201088,
            NAMED_GPT_OSS,
            Experts(32, 4, 2880, biases=True, balance=GPT_OSS_LOSS),
        ),
        _of_experts(
            "gpt-oss-120b",
            "36 2880 64 8 2880",
            4096,
            201088,
            NAMED_GPT_OSS,
            Experts(128, 4, 2880, biases=True, balance=GPT_OSS_LOSS),
        ),
        _of_experts("deepseek-v2-lite", "27 2048 16 0 10944", 4096, 102400, DEEPSEEK_LITE, DEEPSEEK_LITE_EXPERTS),
        _of_experts("deepseek-v2", "60 5120 128 0 12288", 4096, 102400, DEEPSEEK, DEEPSEEK_V2_EXPERTS),
        _of_experts("deepseek-v3", "61 7168 128 0 18432", 4096, 129280, DEEPSEEK, DEEPSEEK_V3_EXPERTS),
        _of_experts("kimi-k2", "61 7168 64 0 18432", 4096, 163840, KIMI_K2, KIMI_K2_EXPERTS),
        _dense("gemma-2-2b", "26 2304 8 4 9216", 8192, 256000, GEMMA2),
        _dense("gemma-2-9b", "42 3584 16 8 14336", 8192, 256000, GEMMA2),
        _dense("gemma-2-27b", "46 4608 32 16 36864", 8192, 256000, GEMMA2, head_columns=128, score_columns=144.0),
        _gemma3("1b", "26 1152 4 1 6912", 262144, window=512),
        _gemma3("4b", "34 2560 8 4 10240"),
        _gemma3("12b", "48 3840 16 8 15360"),
        _gemma3("27b", "62 5376 32 16 21504", head_columns=128, score_columns=168.0),
        _dense("phi-3-mini", "32 3072 32 32 8192", 4096, 32064, LLAMA, window=PHI3_WINDOW),
        _dense("phi-3-medium", "40 5120 40 10 17920", 4096, 32064, LLAMA, window=PHI3_WINDOW),
        _dense("phi-4", "40 5120 40 10 17920", 4096, 100352, LLAMA, rotary_base=250_000.0),
        _dense("phi-4-mini", "32 3072 24 8 8192", 4096, 200064, LLAMA, shared_table=True, rotary_share=0.75),
        _dense("olmo-2-1b", "16 2048 16 16 8192", 4096, 100352, OLMO2),
        _dense("olmo-2-7b", "32 4096 32 32 11008", 4096, 100352, OLMO2),
        _dense("olmo-2-13b", "40 5120 40 40 13824", 4096, 100352, OLMO2),
        _dense("olmo-2-32b", "64 5120 40 8 27648", 4096, 100352, OLMO2),
    )
}
