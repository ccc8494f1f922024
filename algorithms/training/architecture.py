"""Transformer architectures: the plain GPT, and the variants of Llama and others.

    plain GPT   LayerNorm, biases, GELU, one key head for each query head, learned positions, a shared vocabulary table
    Llama       RMSNorm, no biases, SwiGLU, grouped-query attention, rotary positions, two vocabulary tables
    Qwen        Llama with biases of QKV (2), or with a normalisation of queries and keys (3)
    Gemma       Llama with GeGLU, a scaled embedding, norms before and after each branch, sliding windows, soft caps (2)
                or a normalisation of queries and keys (3), and a shared table
    OLMo 2      Llama with norms after each branch, and a normalisation of queries and keys
    GPT-NeoX    the MLP beside attention, each with a norm; GPT-J and Phi with one norm
    GPT-OSS     Llama with biases, sinks, windows in every second layer, and a clamped gate
    DeepSeek    Llama with latent attention: queries, keys and values from few columns (V2, V3)

Columns that belong together are units that no axis cuts: a group of attention heads has its query heads, one key head
and one value head; a gated MLP has a gate and an up column beside each other for each inner column.

Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019; Shazeer, "GLU Variants Improve Transformer",
2020; Ainslie et al., "GQA", 2023; Su et al., "RoFormer", 2021 (rotary positions); Touvron et al., "LLaMA", 2023 (all of
them together); Yang et al., "Qwen2 Technical Report", arXiv 2407.10671; Yang et al., "Qwen3 Technical Report", arXiv
2505.09388; Gemma Team, "Gemma 2", arXiv 2408.00118, and "Gemma 3 Technical Report", arXiv 2503.19786; OLMo Team, "2
OLMo 2 Furious", arXiv 2501.00656; Jiang et al., "Mistral 7B", arXiv 2310.06825 (sliding windows); Abdin et al., "Phi-4
Technical Report", arXiv 2412.08905; DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434 (latent attention); Black et al.,
"GPT-NeoX-20B", arXiv 2204.06745 (parallel branches); OpenAI, arXiv 2508.10925 (GPT-OSS).
"""

from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.tabular import ShortRepr

NormKind = Literal["layer", "rms"]
Positions = Literal["learned", "rotary", "none"]
Gate = Literal["silu", "gelu", "clamped"]
Branches = Literal["serial", "parallel", "shared"]
NormPlace = Literal["before", "after", "both"]
QkNorm = Literal["none", "head", "row"]
ROTARY_BASE = 10000.0


@dataclass(frozen=True, slots=True, repr=False)
class Architecture(ShortRepr):
    """Architecture of a transformer, without its sizes.

    Parameters
    ----------
    key_heads : key and value heads; 0 for as many as query heads
    gated : whether the MLP is gated, silu(gate) · up, instead of GELU
    norm : LayerNorm (`layer`), or RMSNorm (`rms`), which subtracts no mean and adds no β
    biases : whether products have biases
    positions : learned table, rotations of queries and keys, or none
    rotary_base : base of rotary positions; the longest wave is about 2π · base tokens
    shared_table : whether the embedding table also makes the logits
    head_columns : columns of a head; 0 for hidden / heads
    qkv_biases : whether QKV has biases, although other products have none
    qk_norm : RMSNorm of queries and keys: none, of each head (`head`), or of all heads of a token together (`row`)
    window : tokens that a token sees, itself included; 0 for all tokens before it
    global_every : period of the layers that see all tokens, layer n - 1 first; 0 if all layers have the window
    local_rotary_base : base of rotary positions in layers with a window; 0 for `rotary_base`
    rotary_share : share of the columns of a head that rotary positions rotate
    gate : function of the gate of a gated MLP: SwiGLU (`silu`), GeGLU (`gelu`), or GPT-OSS's SwiGLU of clamped numbers
    norm_place : norms of the input of attention and of the MLP (`before`), of their output (`after`), or `both`
    score_cap : largest attention score; scores are cap · tanh(score / cap); 0 for no cap
    score_columns : columns by whose root scores are divided; 0 for those of a head
    logit_cap : largest logit; logits are cap · tanh(logit / cap); 0 for no cap
    scaled_embedding : whether the embedding is multiplied by √hidden
    key_rank : columns from which keys and values are projected (latent attention); 0 for none
    query_rank : columns from which queries are projected, in latent attention; 0 for none
    rotary_columns : rotated columns of a query head, and of the key that all heads share, in latent attention
    value_columns : columns of a value head, in latent attention
    branches : whether the MLP follows attention (`serial`), or reads the input of the layer beside it, with a norm of
        its own (`parallel`) or with attention's norm (`shared`)
    sinks : whether each head has a learnt logit that takes part in its softmax
    gated_attention : whether a gate, a product of attention's input, multiplies the output of attention

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
    head_columns: int = 0
    qkv_biases: bool = False
    qk_norm: QkNorm = "none"
    window: int = 0
    global_every: int = 0
    local_rotary_base: float = 0.0
    rotary_share: float = 1.0
    gate: Gate = "silu"
    norm_place: NormPlace = "before"
    score_cap: float = 0.0
    score_columns: float = 0.0
    logit_cap: float = 0.0
    scaled_embedding: bool = False
    key_rank: int = 0
    query_rank: int = 0
    rotary_columns: int = 0
    value_columns: int = 0
    branches: Branches = "serial"
    sinks: bool = False
    gated_attention: bool = False

    def __post_init__(self) -> None:
        if self.key_heads < 0:
            raise InputError(f"key_heads {self.key_heads}: a whole number from 0 is accepted (0: as many as heads)")
        for name in ("head_columns", "window", "global_every", *LATENT):
            if getattr(self, name) < 0:
                raise InputError(f"{name} {getattr(self, name)}: a whole number from 0 is accepted")
        for name, accepted in WORDS.items():
            if getattr(self, name) not in accepted:
                raise InputError(f"{name} {getattr(self, name)!r}: accepted are {', '.join(accepted)}")
        self._check_numbers()
        self._check_idle_traits()
        self._check_latent()

    def _check_latent(self) -> None:
        """Checks that latent attention is complete, and that no trait contradicts it.

        Raises
        ------
        InputError : the trait, and what is accepted
        """
        if not self.key_rank:
            return
        for name in ("head_columns", "rotary_columns", "value_columns"):
            if not getattr(self, name):
                raise InputError(f"key_rank {self.key_rank}: needs {name}, a whole number from 1")
        if self.rotary_columns % 2 or self.rotary_columns >= self.head_columns:
            raise InputError(
                f"rotary_columns {self.rotary_columns}: an even number below head_columns = {self.head_columns} is "
                "accepted"
            )
        for name, accepted, word in (
            ("positions", "rotary", "positions=rotary"),
            ("key_heads", 0, "key_heads=0 (every head has its own key)"),
            ("biases", False, "biases=no"),
            ("qkv_biases", False, "qkv_biases=no"),
            ("qk_norm", "none", "qk_norm=none (the latents have norms)"),
            ("rotary_share", 1.0, "rotary_columns in place of rotary_share"),
        ):
            if getattr(self, name) != accepted:
                raise InputError(f"key_rank {self.key_rank}: latent attention needs {word}")

    def _check_numbers(self) -> None:
        """Checks the numbers that are not whole.

        Raises
        ------
        InputError : the number, and the accepted range
        """
        if not (isfinite(self.rotary_base) and self.rotary_base > 1):
            raise InputError(f"rotary_base {self.rotary_base}: a number above 1 is accepted")
        if self.local_rotary_base and not (isfinite(self.local_rotary_base) and self.local_rotary_base > 1):
            raise InputError(f"local_rotary_base {self.local_rotary_base}: a number above 1, or 0, is accepted")
        for name in ("score_cap", "score_columns", "logit_cap"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} {getattr(self, name)}: a number from 0 is accepted (0: none)")
        if not 0 < self.rotary_share <= 1:
            raise InputError(f"rotary_share {self.rotary_share}: a number above 0 and up to 1 is accepted")

    def _check_idle_traits(self) -> None:
        """Checks that every trait has an effect.

        Raises
        ------
        InputError : a trait without the trait that it changes
        """
        for name, usual, needed, is_there in (
            ("gate", "silu", "gated=yes", self.gated),
            ("qkv_biases", False, "biases=no", not self.biases),
            ("global_every", 0, "window", self.window > 0),
            ("local_rotary_base", 0.0, "window", self.window > 0),
            ("local_rotary_base", 0.0, "positions=rotary", self.positions == "rotary"),
            ("rotary_share", 1.0, "positions=rotary", self.positions == "rotary"),
            ("branches", "serial", "norm_place=before", self.norm_place == "before"),
            ("query_rank", 0, "key_rank", self.key_rank > 0),
            ("rotary_columns", 0, "key_rank", self.key_rank > 0),
            ("value_columns", 0, "key_rank", self.key_rank > 0),
        ):
            if getattr(self, name) != usual and not is_there:
                raise InputError(f"{name} {getattr(self, name)}: needs {needed}, and has no effect without")

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
        differs_by_text = {
            f"{self.key_heads} key heads": self.key_heads > 0,
            f"heads of {self.head_columns}": self.head_columns > 0,
            self._attention_words: bool(self._attention_words),
            "gated MLP" + {"silu": "", "gelu": " with GELU", "clamped": " of clamped numbers"}[self.gate]: self.gated,
            BRANCHES[self.branches]: self.branches != "serial",
            {"layer": "LayerNorm", "rms": "RMSNorm"}[self.norm] + NORM_PLACES[self.norm_place]: (
                self.norm == "rms" or self.norm_place != "before"
            ),
            "no biases" + (" but of QKV" if self.qkv_biases else ""): not self.biases,
            self._rotary_words: self.positions == "rotary",
            "no positions": self.positions == "none",
            "scaled embedding": self.scaled_embedding,
            "two tables": not self.shared_table,
            f"logits up to {self.logit_cap:g}": self.logit_cap > 0,
        }
        return tuple(words for words, differs in differs_by_text.items() if differs)

    @property
    def _rotary_words(self) -> str:
        base = "" if self.rotary_base == ROTARY_BASE else f" of base {self.rotary_base:g}"
        local = f" and {self.local_rotary_base:g} in windows" if self.local_rotary_base else ""
        share = f" on {100 * self.rotary_share:g} % of a head" if self.rotary_share < 1 else ""
        return f"rotary positions{base}{local}{share}"

    @property
    def _attention_words(self) -> str:
        except_layers = f" except in 1 layer of {self.global_every}" if self.global_every else ""
        norm = {"none": "", "head": "QK norm of heads", "row": "QK norm of rows"}[self.qk_norm]
        window = f"window of {self.window}{except_layers}" if self.window else ""
        cap = f"scores up to {self.score_cap:g}" if self.score_cap else ""
        scale = f"scores by √{self.score_columns:g}" if self.score_columns else ""
        sinks, gate = "sinks" if self.sinks else "", "gated attention" if self.gated_attention else ""
        return ", ".join(words for words in (self._latent_words, norm, window, cap, scale, sinks, gate) if words)

    @property
    def _latent_words(self) -> str:
        if not self.key_rank:
            return ""
        queries = f" and queries from {self.query_rank}" if self.query_rank else ""
        return (
            f"keys and values from {self.key_rank} columns{queries}, {self.rotary_columns} of a head rotated, "
            f"values of {self.value_columns}"
        )

    def head(self, hidden: int, heads: int) -> int:
        """Columns of a head of a model of that hidden size."""
        return self.head_columns or hidden // heads

    def rotated_columns(self, head: int) -> int:
        """Columns of a head of `head` columns that rotary positions rotate."""
        return self.rotary_columns or (int(head * self.rotary_share) if self.positions == "rotary" else 0)

    def value(self, head: int) -> int:
        """Columns of the value of a head whose query has `head` columns."""
        return self.value_columns or head

    def has_window(self, sequence: int) -> bool:
        """Whether some layer has a window shorter than a sequence."""
        return 0 < self.window < sequence

    def layer_period(self, sequence: int) -> int:
        """The period of the layers that differ in their attention; 1 if all layers are alike.

        >>> Architecture(window=8, global_every=3).layer_period(64), Architecture(window=8).layer_period(64)
        (3, 1)
        """
        differ = self.has_window(sequence) or self.local_rotary_base > 0
        return self.global_every if differ and self.global_every else 1

    def is_global(self, layer: int) -> bool:
        """Whether a layer sees all tokens.

        >>> [Architecture(window=8, global_every=3).is_global(layer) for layer in range(4)]
        [False, False, True, False]
        """
        return not self.window or (self.global_every > 0 and (layer + 1) % self.global_every == 0)

    def global_layers(self, layers: int) -> int:
        """The number of layers that see all tokens, among the first `layers`."""
        if not self.window:
            return layers
        return layers // self.global_every if self.global_every else 0

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
        if not self.head_columns and hidden % heads:
            return f"heads {heads}: must divide hidden = {hidden}, or head_columns=… is needed"
        head = self.head(hidden, heads)
        if self.positions == "rotary" and self.rotary_share == 1 and not self.head_columns and head % 2:
            return f"rotary positions turn pairs of columns: hidden / heads must be even, and {hidden} / {heads} is odd"
        rotated = self.rotated_columns(head)
        if self.positions == "rotary" and (rotated % 2 or not rotated):
            return (
                f"rotary positions turn pairs of columns: rotary_share {self.rotary_share:g} of {head} columns is "
                f"{rotated}: an even number from 2 is needed"
            )
        return ""


LATENT = ("key_rank", "query_rank", "rotary_columns", "value_columns")
"""Numbers of latent attention."""
WORDS: dict[str, tuple[str, ...]] = {
    "norm": get_args(NormKind),
    "positions": get_args(Positions),
    "qk_norm": get_args(QkNorm),
    "gate": get_args(Gate),
    "norm_place": get_args(NormPlace),
    "branches": get_args(Branches),
}
"""Accepted words of the traits that are words."""
NORM_PLACES: dict[NormPlace, str] = {"before": "", "after": " after", "both": " before and after"}
BRANCHES: dict[Branches, str] = {
    "serial": "",
    "parallel": "MLP beside attention",
    "shared": "MLP beside attention after one norm",
}
LARGEST_SIZE = 10**12
MOST = {"layers": 10_000, "steps": 10_000} | dict.fromkeys(
    ("hidden", "heads", "sequence", "vocabulary", "batch", "inner"), LARGEST_SIZE
)
"""Largest accepted sizes of a model and its training steps; the work of a prediction grows with layers and steps."""
PLAIN = Architecture()
LLAMA = Architecture(gated=True, norm="rms", biases=False, positions="rotary", shared_table=False)
QWEN2 = replace(LLAMA, qkv_biases=True)
QWEN3 = replace(LLAMA, qk_norm="head")
GEMMA = replace(LLAMA, shared_table=True, gate="gelu", norm_place="both", scaled_embedding=True)
GPT_OSS = replace(LLAMA, biases=True, sinks=True, gate="clamped")
DEEPSEEK = replace(LLAMA, key_rank=512, head_columns=192, rotary_columns=64, value_columns=128)
"""The heads of DeepSeek V2 and V3.  Source: arXiv 2405.04434, section 3.1.2; arXiv 2412.19437, section 4.2."""
OLMO = replace(LLAMA, norm_place="after", qk_norm="row")
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
