"""Memory that PyTorch's allocator has handed out at the peak of a step of Megatron-LM, by purpose.

The peak of a stage is in the forward pass of its last microbatch before a backward pass, with all chunks in flight
stored:

    peak = weights + gradients + optimizer + workspaces + batches + chunks in flight · layers of a chunk · one layer
         + what the loss needs (last stage)

For each token, a layer stores in a 16-bit type, with h = hidden, q and k the columns of queries and of keys on a rank,
f the inner width on a rank, and all rows of h divided by the tensor group with sequence parallelism:

    inputs of two norms, and their outputs, which are the inputs of products     8 h
    queries, keys, values, and the output of attention                           4 q + 4 k
    first product of the MLP, and the activation                                 4 f, or 6 f if it is gated
    two masks of hidden dropout                                                  2 h
    unfused attention: weights, dropped weights and their mask                   5 · sequence · heads

The loss needs logits in 16 bits, and their copy in 32 bits, which softmax overwrites.  What is not counted: the CUDA
context, NCCL's buffers and fragmentation, none of which PyTorch's allocator reports as allocated.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, section 4
(34 bytes for each token and column, 5 for each score); NVIDIA, Megatron-LM, megatron/core: tensor_parallel/
cross_entropy.py (softmax in 32 bits, in place), pipeline_parallel/schedules.py (warm-up microbatches), distributed/
(gradient buffers), optimizer/; NVIDIA, TransformerEngine, pytorch/module/base.py (workspaces); PyTorch, "CUDA
semantics", cuBLAS workspaces.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from quadrille.algorithms.training.megatron_step import AttentionKernel, MegatronStep

MegatronKind = Literal[
    "parameters", "gradients", "optimizer", "workspaces", "batches", "activations", "loss", "backward"
]
MEGATRON_KINDS: tuple[MegatronKind, ...] = get_args(MegatronKind)
KIB, MIB = 2**10, 2**20
TORCH_WORKSPACE = 32 * MIB
"""Workspace of a cuBLAS handle in PyTorch on Hopper, and with CUBLAS_WORKSPACE_CONFIG=:4096:8 [B]."""
SMALL_TORCH_WORKSPACE = 2 * 4 * MIB + 8 * 16 * KIB
"""The same on other GPUs by default, :4096:2:16:8; deterministic jobs set :4096:8 [B]."""
HOPPER = ("H100", "H200", "GH200", "H20", "H800")
TORCH_HANDLES = 2
"""cuBLAS handles of a process: one of the main thread, one of autograd's thread; each has its workspace."""
TE_WORKSPACES = {"A100": 4 * MIB}
"""Workspace of TransformerEngine's products by kind of GPU [B]."""
TE_WORKSPACE = 32 * MIB
"""The same on Hopper and newer [B]."""


WIDE_COPIES = {"unfused": 1, "native": 2, "te": 0}
"""Copies of the logits in 32 bits at the peak: softmax in place, compiled softmax, TransformerEngine's in 16 bits."""


@dataclass(frozen=True, slots=True)
class MemoryCauses:
    """Which causes the accounting includes; a study switches them off one at a time.

    Parameters
    ----------
    wide_logits : logits in 32 bits beside those in 16 bits
    workspaces : workspaces of cuBLAS and TransformerEngine
    dropout_masks : masks of dropout
    norm_inputs : inputs of norms beside their outputs
    batches : batches and pipeline messages that outlive the step
    layout_copies : the output of attention in FlashAttention's own layout
    chunks_in_flight : microbatches that wait for their backward pass, beyond one
    placeholders : placeholders of weight gradients that products accumulate themselves
    backward : gradients of activations, of logits and of the output table
    """

    wide_logits: bool = True
    workspaces: bool = True
    dropout_masks: bool = True
    norm_inputs: bool = True
    batches: bool = True
    layout_copies: bool = True
    chunks_in_flight: bool = True
    placeholders: bool = True
    backward: bool = True


ALL_CAUSES = MemoryCauses()


@dataclass(frozen=True, slots=True)
class MegatronMemory:
    """Memory of one pipeline stage of a step.

    Parameters
    ----------
    step : training step
    stage : pipeline stage, from 0; the last one by default
    gpu : kind of GPU, such as A100, which decides the size of workspaces
    causes : causes that count
    """

    step: MegatronStep
    stage: int = -1
    gpu: str = ""
    causes: MemoryCauses = field(default_factory=MemoryCauses)

    @property
    def is_last(self) -> bool:
        return self.stage in (-1, self.step.pipeline - 1)

    @property
    def is_first(self) -> bool:
        return self.stage % self.step.pipeline == 0

    @property
    def layers(self) -> int:
        """Layers of the stage."""
        return self.step.layers_of(self.stage)

    def by_kind(self) -> dict[MegatronKind, float]:
        """Bytes of each purpose at the peak."""
        step, parameters = (
            self.step,
            float(stage_parameters(self.step, self.layers, is_first=self.is_first, is_last=self.is_last)),
        )
        held = parameters / (step.data * step.context if step.sharded_weights else 1)
        shards = step.data * step.context / step.optimizer_instances if step.distributed_optimizer else 1
        optimizer = 8 if step.precision == "float32" else 12
        return {
            "parameters": step.item_bytes * held,
            "gradients": step.gradient_bytes * held,
            "optimizer": optimizer * parameters / shards,
            "workspaces": float(self._workspaces()) if self.causes.workspaces else 0.0,
            "batches": float(self._batches()) if self.causes.batches else 0.0,
            "activations": self._activations(),
            "loss": self._loss() if self.is_last else 0.0,
            "backward": max(0.0, self._backward() - (self._loss() if self.is_last else 0.0)),
        }

    @property
    def peak(self) -> float:
        """Bytes at the peak."""
        return sum(self.by_kind().values())

    @property
    def between_steps(self) -> float:
        """Bytes between two steps, when fp16 gradients still have their copy in 32 bits."""
        kinds, step = self.by_kind(), self.step
        copies = 4 / 12 * kinds["optimizer"] if step.precision == "float16" else 0.0
        held = sum(size for kind, size in kinds.items() if kind not in ("activations", "loss", "backward", "batches"))
        return held + copies + (2 * step.virtual * self._message() if step.pipeline > 1 else 0)

    def _workspaces(self) -> int:
        """Workspaces of PyTorch, with those of TransformerEngine or Megatron-LM's own buffer of scores."""
        step = self.step
        large = step.deterministic or self.gpu in HOPPER
        torch = TORCH_HANDLES * (TORCH_WORKSPACE if large else SMALL_TORCH_WORKSPACE)
        if step.implementation == "transformer_engine":
            return torch + TE_WORKSPACES.get(self.gpu, TE_WORKSPACE) + self._placeholders()
        scores = step.tokens * step.sequence * step.heads // step.tensor * step.item_bytes
        return torch + (scores if step.attention == "unfused" else 0)

    def _placeholders(self) -> int:
        """Weight gradients that TransformerEngine hands to autograd, one for each shape, where products accumulate."""
        step = self.step
        if not (step.fused_gradients and self.causes.placeholders):
            return 0
        return layer_products(step) * step.item_bytes

    def _batches(self) -> int:
        """The attention mask of the loader, and the message received and the message sent last in a pipeline."""
        step = self.step
        mask = step.tokens * step.sequence if step.mask_from_loader else 0
        return mask + (2 * self._message() if step.pipeline > 1 else 0)

    def _message(self) -> int:
        """Bytes of a message between stages; between steps, each chunk still names its last two."""
        return self._rows(1) * self.step.item_bytes

    def _rows(self, columns: int) -> int:
        """Elements of rows of `columns` · hidden between products."""
        return columns * self.step.tokens * self.step.hidden // self._scattered

    @property
    def _scattered(self) -> int:
        return self.step.tensor if self.step.sequence_parallel else 1

    @property
    def in_flight(self) -> int:
        """Chunks whose activations are stored at the peak."""
        step, stage = self.step, self.stage % self.step.pipeline
        if not self.causes.chunks_in_flight or step.pipeline == 1:
            return step.virtual
        if step.virtual == 1:
            return min(step.microbatches, step.pipeline - stage)
        warm_up = 2 * (step.pipeline - stage - 1) + (step.virtual - 1) * (step.group or step.pipeline)
        return min(step.microbatches * step.virtual, warm_up + 1)

    def _activations(self) -> float:
        step = self.step
        chunk_layers = self.layers / step.virtual
        layer = self.layer_bytes()
        embedding = self._rows(1) if self.is_first and self.causes.dropout_masks and step.hidden_dropout else 0
        if step.recompute == "selective":
            return self.in_flight * chunk_layers * layer + self._scores() + embedding
        if step.recompute == "full":
            return self._recomputed(chunk_layers, layer) + embedding
        return self.in_flight * chunk_layers * layer + embedding

    def _recomputed(self, chunk_layers: float, layer: float) -> float:
        """Inputs of recomputed units, whole layers, and one unit that is being recomputed."""
        step, kept = self.step, self._rows(1) * self.step.item_bytes
        whole = layer + self._scores()
        if step.recompute_block:
            recomputed = min(float(step.recompute_layers), chunk_layers)
            return self.in_flight * (recomputed * kept + (chunk_layers - recomputed) * whole) + whole
        units = chunk_layers / step.recompute_layers
        return self.in_flight * units * kept + min(step.recompute_layers, chunk_layers) * whole

    @property
    def attention(self) -> AttentionKernel:
        """The kernel of attention that TransformerEngine chooses: cuDNN on Hopper and newer, FlashAttention on A100.

        cuDNN has no deterministic backward pass on Blackwell.
        """
        if self.step.attention != "auto":
            return self.step.attention
        is_blackwell = "B" in self.gpu
        return "flash" if self.gpu == "A100" or (is_blackwell and self.step.deterministic) else "cudnn"

    def layer_bytes(self) -> float:
        """Bytes that one layer stores for one microbatch; without recomputed scores."""
        step, causes = self.step, self.causes
        size, tokens, tensor = step.item_bytes, step.tokens, step.tensor
        queries, inner = _queries(step), step.inner // tensor
        rows = self._rows(4 if causes.norm_inputs else 2) * size
        masks = self._rows(2) if causes.dropout_masks and step.hidden_dropout else 0
        attention = tokens * (queries + _qkv(step)) * size
        if self.attention == "flash" and step.micro_batch > 1 and causes.layout_copies:
            attention += tokens * queries * size
        mlp = tokens * inner * (3 if step.gated else 2) * size
        scores = self._scores() if step.recompute == "none" else 0
        return rows + masks + attention + mlp + scores

    def _scores(self) -> int:
        """Bytes of attention weights of one layer; fused attention stores a sum for each row instead."""
        step = self.step
        heads = step.heads // step.tensor
        if step.attention != "unfused":
            return 4 * step.tokens * heads
        dropped = (step.item_bytes + (1 if self.causes.dropout_masks else 0)) if step.attention_dropout else 0
        return step.tokens * step.sequence * heads * (step.item_bytes + dropped)

    def _loss(self) -> float:
        """Bytes of the last norm, and of logits at the fuller of the forward and the backward pass of the loss."""
        step, causes = self.step, self.causes
        logits = step.tokens * step.vocabulary // step.tensor * step.item_bytes
        gathered = step.tokens * step.hidden * step.item_bytes if step.sequence_parallel else 0
        wide = WIDE_COPIES[step.loss] * 2 * logits if causes.wide_logits and step.precision != "float32" else 0
        copies = 2 if step.loss == "te" else 1
        table = step.vocabulary // step.tensor * step.hidden * step.item_bytes if causes.backward else 0
        backward = copies * logits + table + self._message() if causes.backward else 0
        return 2 * self._message() + gathered + max(logits + wide, backward)

    def _backward(self) -> float:
        """Bytes of gradients of activations in the backward pass of an MLP, after the activation itself is freed."""
        step = self.step
        if not self.causes.backward:
            return 0.0
        up = step.inner // step.tensor * (2 if step.gated else 1)
        return float(step.tokens * (step.hidden + up) * step.item_bytes)


def layer_products(step: MegatronStep) -> int:
    """Elements of the weight matrices of one layer on one rank of the tensor group."""
    inner = step.inner // step.tensor
    return step.hidden * (_queries(step) + _qkv(step) + inner * (3 if step.gated else 2))


def layer_parameters(step: MegatronStep) -> int:
    """Parameters of one layer on one rank of the tensor group."""
    hidden, qkv = step.hidden, _qkv(step)
    up = step.inner // step.tensor * (2 if step.gated else 1)
    biases = qkv + up + 2 * hidden if step.biases else qkv if step.qkv_biases else 0
    norms = 2 * hidden * (1 if step.rms_norm else 2)
    return layer_products(step) + biases + norms + (2 * step.head_columns if step.head_norm else 0)


def _queries(step: MegatronStep) -> int:
    """Columns of queries on one rank."""
    return step.heads * step.head_columns // step.tensor


def _qkv(step: MegatronStep) -> int:
    """Columns of queries, keys and values on one rank; a rank has at least one head of keys."""
    return _queries(step) + 2 * max(1, step.key_heads // step.tensor) * step.head_columns


def stage_parameters(step: MegatronStep, layers: int, *, is_first: bool, is_last: bool) -> int:
    """Parameters of a pipeline stage on one rank.

    Parameters
    ----------
    layers : layers of the stage
    is_first : whether the stage has the embedding and the table of positions
    is_last : whether the stage has the last norm and the output layer
    """
    table = step.vocabulary // step.tensor * step.hidden
    embedding = table + step.positions * step.hidden if is_first else 0
    output = step.hidden * (1 if step.rms_norm else 2) if is_last else 0
    has_output_table = is_last and (step.untied or not is_first)
    return layers * layer_parameters(step) + embedding + output + (table if has_output_table else 0)
