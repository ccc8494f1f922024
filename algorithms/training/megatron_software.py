"""`MegatronSoftware`: the choices of Megatron-LM that decide the memory of a training step and that a GPT has not.

`--software megatron:loss=te,deterministic=yes` counts the memory that PyTorch allocates under Megatron-LM
(`megatron_memory.py`) instead of the buffers of a schedule.
"""

from dataclasses import dataclass, fields
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.gpt import MLP_FACTOR, Gpt
from quadrille.algorithms.training.megatron_memory import MegatronMemory
from quadrille.algorithms.training.megatron_step import WORDS, MegatronStep

MEGATRON = "megatron"
YES_OR_NO = {"yes": True, "no": False}
AMPERE_FLOPS, HOPPER_FLOPS = 400e12, 1500e12
"""Peaks in 16 bits between generations of NVIDIA's GPUs: 312e12 flop/s of A100, 989e12 of H100, 2,250e12 of B200.

Source: NVIDIA, data sheets of A100, H100 and B200, dense bfloat16.
"""


@dataclass(frozen=True, slots=True)
class MegatronSoftware:
    """Choices of Megatron-LM; the names and the meaning are those of `MegatronStep`.

    >>> str(parse_software("megatron:loss=te,positions=2048"))
    'megatron:loss=te,positions=2048'
    """

    attention: str = "auto"
    deterministic: bool = False
    implementation: str = "transformer_engine"
    loss: str = "unfused"
    fused_gradients: bool = True
    mask_from_loader: bool = True
    positions: int = 0
    attention_dropout: float = -1.0
    optimizer_instances: int = 1
    group: int = 0
    recompute_layers: int = 1
    recompute_block: bool = False

    def __str__(self) -> str:
        changes = {name: value for name, value in self.changes.items() if value != getattr(MegatronSoftware(), name)}
        words = {name: ("no", "yes")[value] if isinstance(value, bool) else value for name, value in changes.items()}
        return MEGATRON + (":" if words else "") + ",".join(f"{name}={value}" for name, value in words.items())

    @property
    def changes(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def step(self, gpt: Gpt, grid: Grid, *, sequence_parallel: bool) -> MegatronStep:
        """The training step of Megatron-LM with the sizes of a GPT on a grid.

        Raises
        ------
        InputError : a grid, a ZeRO stage, a dtype or sizes that Megatron-LM has not, or a model that it does not count
        """
        if reason := uncounted(gpt.experts, gpt.architecture.key_rank, gpt.products):
            raise InputError(
                f"--software megatron: its memory is not known with {reason}: leave the flag out, for the buffers of "
                "the schedule"
            )
        if grid.z * grid.y > 1:
            raise InputError(f"--software megatron: grid {grid}: only data, context, pipeline and x are accepted")
        if gpt.zero == 2 or gpt.dtype == "float64":
            words = "ZeRO 2" if gpt.zero == 2 else "float64"
            raise InputError(f"--software megatron: Megatron-LM has no {words}")
        traits, own = gpt.architecture, self.changes
        learned = (self.positions or gpt.sequence) if traits.positions == "learned" else 0
        own["positions"] = learned
        own["attention_dropout"] = gpt.dropout if self.attention_dropout < 0 else self.attention_dropout
        if gpt.attention == "unfused":
            own["attention"] = "unfused"
        return MegatronStep(
            gpus=grid.size,
            layers=gpt.layers,
            hidden=gpt.hidden,
            heads=gpt.heads,
            sequence=gpt.sequence,
            vocabulary=gpt.vocabulary,
            inner=gpt.inner or MLP_FACTOR * gpt.hidden,
            head_columns=gpt.head,
            key_heads=traits.key_value_heads(gpt.heads),
            micro_batch=gpt.micro_batch or max(1, gpt.batch // grid.data),
            global_batch=gpt.batch,
            tensor=grid.x,
            context=grid.context,
            pipeline=grid.pipeline,
            virtual=gpt.interleave,
            stage_layers=gpt.stages,
            gated=traits.gated,
            rms_norm=traits.norm == "rms",
            biases=traits.biases,
            qkv_biases=traits.qkv_biases,
            head_norm=traits.qk_norm == "head",
            untied=not traits.shared_table,
            precision=gpt.dtype,
            gradient_bytes=4 if gpt.dtype == "float32" else gpt.gradient_bytes,
            distributed_optimizer=gpt.zero > 0,
            sharded_weights=gpt.zero == 3,
            sequence_parallel=sequence_parallel and grid.x > 1,
            recompute="full" if gpt.recompute == "full-keep-exchange" else gpt.recompute,
            hidden_dropout=gpt.dropout,
            **own,
        )


def uncounted(experts: Experts | None, key_rank: int, products: Products) -> str:
    """Reason why the accounting of Megatron-LM's memory does not cover a model; empty if it does.

    >>> uncounted(None, 0, "dtype"), uncounted(None, 512, "dtype"), uncounted(None, 0, "fp8")
    ('', 'latent attention', 'products in small numbers')

    Parameters
    ----------
    key_rank : rank of the keys and values of latent attention; 0 without it
    """
    reasons = {
        "experts": experts is not None,
        "latent attention": key_rank > 0,
        "products in small numbers": products != "dtype",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def software_of(step: MegatronStep) -> MegatronSoftware:
    """The choices of a step; what follows from the GPT is left out."""
    own = {field.name: getattr(step, field.name) for field in fields(MegatronSoftware)}
    if step.positions == step.sequence:
        own["positions"] = 0
    if step.attention_dropout == step.hidden_dropout:
        own["attention_dropout"] = -1.0
    if step.attention == "unfused":
        own["attention"] = "auto"
    return MegatronSoftware(**own)


def parse_software(text: str) -> MegatronSoftware | None:
    """The software in a text such as `megatron:loss=te`; None for no text.

    Raises
    ------
    InputError : another name, an unknown choice, or a value that it does not accept
    """
    if not text:
        return None
    name, _, changes = text.partition(":")
    if name != MEGATRON:
        raise InputError(f"--software {text!r:.60}: megatron, or megatron:KEY=VALUE,… is accepted")
    usual = MegatronSoftware().changes
    values: dict[str, Any] = {}
    for word in changes.split(",") if changes else ():
        key, _, value = word.strip().partition("=")
        if key not in usual:
            raise InputError(f"--software {text:.60}: {key!r:.40}: accepted are {', '.join(usual)}")
        values[key] = _value(key, value, usual[key])
    return MegatronSoftware(**values)


def _value(key: str, text: str, usual: object) -> object:
    """The value of a choice, of the type of its default."""
    if isinstance(usual, bool):
        if text not in YES_OR_NO:
            raise InputError(f"--software megatron: {key} {text!r:.40}: yes or no is accepted")
        return YES_OR_NO[text]
    if isinstance(usual, str):
        if text not in WORDS[key]:
            raise InputError(f"--software megatron: {key} {text!r:.40}: accepted are {', '.join(WORDS[key])}")
        return text
    try:
        number = float(text) if isinstance(usual, float) else int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 10**9:
        raise InputError(f"--software megatron: {key} {text!r:.40}: a number from 0 is accepted")
    return number


def generation(peak_flops_per_second: float) -> str:
    """The GPU whose workspaces count, by the peak in 16 bits: A100, H100 or B200.

    >>> generation(312e12), generation(989e12), generation(2250e12)
    ('A100', 'H100', 'B200')
    """
    if peak_flops_per_second < AMPERE_FLOPS:
        return "A100"
    return "H100" if peak_flops_per_second < HOPPER_FLOPS else "B200"


def stage_memories(step: MegatronStep, gpu: str) -> list[MegatronMemory]:
    """The memory of each pipeline stage."""
    return [MegatronMemory(step, stage, gpu) for stage in range(step.pipeline)]
