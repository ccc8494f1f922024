"""Which of Megatron-LM's arguments are read, which are approximated, and which ask for what no experiment has."""

SCRIPTS = ("", "pretrain_gpt.py", "pretrain_gpt_modelopt.py", "pretrain_gpt_core.py")
NEVER = {
    "hybrid-override-pattern": "layers of several kinds",
    "hybrid-layer-pattern": "layers of several kinds",
    "is-hybrid-model": "layers of several kinds",
    "heterogeneous-layers-config-path": "layers of several kinds",
    "experimental-attention-variant": "other attention",
    "export-kd-cfg": "teacher model",
    "decoder-num-layers": "encoder",
    "num-layers-at-start-in-bf16": "layers in several precisions",
}
"""Arguments for which there is no experiment, with what they ask for."""
APPROXIMATE = {
    "mtp-num-layers": "layers that predict further tokens are left out",
    "fp8-dot-product-attention": "attention has 16 bits",
    "fp8-multi-head-attention": "attention has 16 bits",
    "first-last-layers-bf16": "all layers have products in small numbers",
    "moe-pad-expert-input-to-capacity": "experts take no padding",
    "overlap-moe-expert-parallel-comm": "the exchange of tokens overlaps nothing",
    "moe-shared-expert-overlap": "shared experts overlap no exchange",
    "delay-wgrad-compute": "weight gradients follow input gradients",
    "hierarchical-context-parallel-sizes": "context parallelism has one level",
    "rotary-interleaved": "rotary positions turn halves of a head",
    "squared-relu": "squared ReLU is predicted as GELU",
    "rampup-batch-size": "the batch does not grow",
    "step-batch-size-schedule": "the batch does not grow",
    "optimizer-cpu-offload": "the optimizer stays on the GPU",
    "cpu-offloading": "activations stay on the GPU",
    "window-size": "attention has no window",
    "window-attn-skip-freq": "attention has no window",
    "recompute-modules": "another choice than core_attn is predicted as core_attn",
    "optimizer": "another optimizer is predicted as Adam",
    "cuda-graph-impl": "no CUDA graphs",
    "external-cuda-graph": "no CUDA graphs",
    "enable-cuda-graph": "no CUDA graphs",
    "fp32-residual-connection": "the residual stream has the element type of activations",
    "account-for-embedding-in-pipeline-split": "stages have the same number of layers",
    "account-for-loss-in-pipeline-split": "stages have the same number of layers",
}
"""Arguments that an experiment can only approximate, with what it does instead."""
EXACT_VALUES = {
    "optimizer": ("adam",),
    "recompute-modules": ("core_attn",),
    "cuda-graph-impl": ("none",),
    "mtp-num-layers": ("0",),
}
"""Values of these arguments that are followed exactly."""
READ = frozenset((
    "num-layers", "hidden-size", "num-attention-heads", "seq-length", "vocab-size", "padded-vocab-size",
    "make-vocab-size-divisible-by", "tokenizer-type", "ffn-hidden-size", "swiglu", "kv-channels",
    "group-query-attention", "num-query-groups", "position-embedding-type", "use-rotary-position-embeddings",
    "rotary-base", "rotary-percent", "max-position-embeddings", "normalization", "disable-bias-linear",
    "add-qkv-bias", "qk-layernorm", "untie-embeddings-and-output-weights", "micro-batch-size", "global-batch-size",
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "sequence-parallel",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank",
    "microbatch-group-size-per-virtual-pipeline-stage", "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout",
    "bf16", "fp16", "accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16",
    "use-distributed-optimizer", "num-distributed-optimizer-instances", "use-megatron-fsdp", "use-custom-fsdp",
    "use-torch-fsdp2", "data-parallel-sharding-strategy", "overlap-grad-reduce", "overlap-param-gather",
    "attention-backend", "use-flash-attn", "transformer-impl", "deterministic-mode", "recompute-granularity",
    "recompute-activations", "recompute-method", "recompute-num-layers", "hidden-dropout", "attention-dropout",
    "cross-entropy-loss-fusion", "cross-entropy-fusion-impl", "no-gradient-accumulation-fusion",
    "no-create-attention-mask-in-dataloader", "clip-grad", "nproc-per-node", "nnodes",
    "virtual-pipeline-model-parallel-size", "tp-comm-overlap", "no-async-tensor-model-parallel-allreduce",
    "cp-comm-type", "fp8-format", "fp8", "fp8-recipe", "fp8-param-gather", "fp8-param", "fp4-format", "fp4",
    "fp4-recipe", "fp4-param", "fp4-param-gather", "num-experts", "moe-router-topk", "moe-ffn-hidden-size",
    "moe-shared-expert-intermediate-size", "moe-shared-expert-gate", "moe-layer-freq", "moe-router-score-function",
    "moe-router-pre-softmax", "moe-router-topk-scaling-factor", "moe-aux-loss-coeff", "moe-expert-capacity-factor",
    "moe-router-num-groups", "moe-router-group-topk", "moe-router-load-balancing-type", "moe-token-dispatcher-type",
    "expert-model-parallel-size", "expert-tensor-parallel-size", "multi-latent-attention", "q-lora-rank",
    "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim", "rope-type",
))  # fmt: skip
"""Arguments that are read."""
