"""Advice for training steps that do not fit: which bytes need most, and the options that make them fewer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quadrille.algorithms.units import format_bytes

if TYPE_CHECKING:
    from quadrille.algorithms.training.gpt import Gpt
    from quadrille.algorithms.training.mlp import Mlp

STATE = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The options of a step that decide about its memory.

    Parameters
    ----------
    sequence : tokens of a sequence; 0 for a stack of linear layers
    recompute, attention : activation recomputation, and fused or unfused attention
    zero : ZeRO stage
    wide_gradients : whether gradients of a 16-bit dtype have 4 bytes
    """

    sequence: int = 0
    recompute: str = "none"
    attention: str = "fused"
    zero: int = 0
    wide_gradients: bool = False


def memory_advice(bytes_by_kind: Mapping[str, int], options: MemoryOptions) -> str:
    """The kinds of bytes that need most, and what makes them fewer, as text.

    >>> sizes = {"parameters": 2**30, "optimizer": 6 * 2**30, "activations": 9 * 2**30, "buffers": 2**30}
    >>> advice = memory_advice(sizes, MemoryOptions(sequence=131072))
    >>> for line in advice.split(": "):
    ...     print(line)
    most of it are activations and buffers of sequences of 131072 tokens (10 GiB)
    a shorter --sequence, --recompute full, a smaller --micro-batch or a smaller --batch would help
    >>> advice = memory_advice(sizes | {"activations": 2**30}, MemoryOptions(sequence=2048, zero=1))
    >>> for line in advice.split(": "):
    ...     print(line)
    most of it are parameters, gradients and optimizer states (7 GiB)
    more --gpus, --zero 2 or 3 or a smaller model would help
    """
    states = sum(bytes_by_kind.get(kind, 0) for kind in STATE)
    others = sum(bytes_by_kind.values()) - states
    if states >= others:
        helps = ["more --gpus"]
        helps += [f"--zero {' or '.join(map(str, range(options.zero + 1, 4)))}"] if options.zero < 3 else []
        helps += ["--gradient-bytes 2"] if options.wide_gradients else []
        helps += ["a smaller model"]
        return f"most of it are parameters, gradients and optimizer states ({format_bytes(states)}): {_any_of(helps)}"
    helps = ["a shorter --sequence"] if options.sequence else []
    helps += ["--attention fused"] if options.attention != "fused" else []
    helps += ["--recompute full"] if options.recompute != "full" and options.sequence else []
    helps += ["a smaller --micro-batch", "a smaller --batch"]
    of = f" of sequences of {options.sequence} tokens" if options.sequence else ""
    return f"most of it are activations and buffers{of} ({format_bytes(others)}): {_any_of(helps)}"


def problem_memory_options(problem: "Gpt | Mlp") -> MemoryOptions:
    """The options of a model's steps that decide about its memory."""
    return MemoryOptions(
        sequence=getattr(problem, "sequence", 0),
        recompute=getattr(problem, "recompute", "none"),
        attention=getattr(problem, "attention", "fused"),
        zero=problem.zero,
        wide_gradients=problem.precision.mixed and problem.precision.gradient_bytes == 4,
    )


def _any_of(helps: list[str]) -> str:
    return f"{', '.join(helps[:-1])} or {helps[-1]} would help"
