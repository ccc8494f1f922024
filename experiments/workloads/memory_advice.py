"""Advice for training steps that do not fit: which bytes need most, and the options that make them fewer."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from quadrille.algorithms.formats.record import device_bytes as device_bytes_of
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
    one_by_one : whether a microbatch is one sequence already
    more_ranks_help : whether more ranks make activations and buffers of one sequence smaller
    """

    sequence: int = 0
    recompute: str = "none"
    attention: str = "fused"
    zero: int = 0
    wide_gradients: bool = False
    one_by_one: bool = False
    more_ranks_help: bool = True


def memory_advice(
    bytes_by_kind: Mapping[str, int], options: MemoryOptions, device_bytes: float = inf, *, states_first: bool = False
) -> str:
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
    most of it are parameters, gradients and optimizer states (7 GiB, of which optimizer 6 GiB)
    more --gpus, --zero 2 or 3 or a smaller model would help

    Parameters
    ----------
    bytes_by_kind : bytes of a rank by kind; bytes in host memory do not count
    device_bytes : memory of a device for one rank [B]; the advice names each group of kinds that alone needs more
    states_first : whether parameters, gradients and optimizer states come first although other kinds may need more
    """
    states = {kind: bytes_by_kind.get(kind, 0) for kind in STATE}
    state_bytes = sum(states.values())
    other_bytes = device_bytes_of(bytes_by_kind) - state_bytes
    about_states, about_others = _state_advice(states, options), _activation_advice(other_bytes, options)
    if states_first or state_bytes >= other_bytes:
        first, second, smaller = about_states, about_others, other_bytes
    else:
        first, second, smaller = about_others, about_states, state_bytes
    return f"most of it are {first}" + (f"; too large alone are also {second}" if smaller > device_bytes else "")


def _state_advice(states: Mapping[str, int], options: MemoryOptions) -> str:
    """The size of parameters, gradients and optimizer states, and what makes them smaller."""
    helps = ["more --gpus"]
    helps += [f"--zero {' or '.join(map(str, range(options.zero + 1, 4)))}"] if options.zero < 3 else []
    helps += ["--gradient-bytes 2"] if options.wide_gradients else []
    helps += ["a smaller model"]
    largest, total = max(states, key=lambda kind: states[kind]), sum(states.values())
    part = f", of which {largest} {format_bytes(states[largest])}" if states[largest] < total else ""
    return f"parameters, gradients and optimizer states ({format_bytes(total)}{part}): {_any_of(helps)}"


def _activation_advice(size: int, options: MemoryOptions) -> str:
    """The size of activations and buffers, and what makes them smaller."""
    helps = ["a shorter --sequence"] if options.sequence else []
    helps += ["--attention fused"] if options.attention == "unfused" else []
    helps += ["--recompute full"] if not options.recompute.startswith("full") and options.sequence else []
    if not options.one_by_one:
        helps += ["a smaller --micro-batch", "a smaller --batch"]
    elif options.more_ranks_help or not helps:
        helps += ["more --gpus"]
    of = f" of sequences of {options.sequence} tokens" if options.sequence else ""
    return f"activations and buffers{of} ({format_bytes(size)}): {_any_of(helps)}"


def tensor_advice(bytes_by_tensor: Mapping[str, int]) -> str:
    """The tensor of a multiplication that needs most, and what makes it smaller, as text.

    >>> tensor_advice({"A": 2**20, "B all": 3 * 2**30})
    'most of it is B all (3 GiB): more --gpus, a smaller --matmul or a --dtype of fewer bytes would help'
    """
    name = max(bytes_by_tensor, key=lambda tensor: bytes_by_tensor[tensor])
    helps = ["more --gpus", "a smaller --matmul", "a --dtype of fewer bytes"]
    return f"most of it is {name} ({format_bytes(bytes_by_tensor[name])}): {_any_of(helps)}"


def problem_memory_options(problem: "Gpt | Mlp") -> MemoryOptions:
    """The options of a model's steps that decide about its memory."""
    return MemoryOptions(
        sequence=getattr(problem, "sequence", 0),
        recompute=getattr(problem, "recompute", "none"),
        attention=getattr(problem, "attention", "fused"),
        zero=problem.zero,
        wide_gradients=problem.precision.mixed and problem.precision.gradient_bytes == 4,
        one_by_one=getattr(problem, "micro_batch", None) == 1,
    )


def _any_of(helps: list[str]) -> str:
    return f"{' or '.join(filter(None, (', '.join(helps[:-1]), helps[-1])))} would help"
