"""A step of the small GPT of Megatron-LM's own tests."""

from quadrille.algorithms.training.megatron_step import MegatronStep

SMALL = MegatronStep(
    gpus=8, layers=12, hidden=512, heads=8, sequence=1024, vocabulary=50304, inner=2048, head_columns=64, key_heads=8,
    micro_batch=4, global_batch=32, positions=1024, deterministic=True, fused_gradients=False,
)  # fmt: skip
