"""The words that say how an experiment is run and where results go, and the options that they come to."""

from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import parse_bytes
from quadrille.cli.words.flags import RunWords
from quadrille.cli.words.numbers import one_of, whole_number
from quadrille.experiments.workloads.run_options import RunOptions, VerifyMethod

if TYPE_CHECKING:
    from quadrille.runtime.arrays.array_library import Backend
    from quadrille.runtime.carriers.message_options import Progress
    from quadrille.runtime.execution.rank_environment import CarrierName
    from quadrille.runtime.operands.generator import Kind

BACKENDS, CARRIERS = ("numpy", "cupy"), ("auto", "mpi", "nccl")
PROGRESSES, KINDS = ("auto", "none", "thread"), ("uniform", "integers")
NAMED_BY_FILE = ("gpt", "gemm_layouts", "placement")
"""Flags that take a name or a rule, or a file instead: one with a folder or an ending."""


def parse_run(words: RunWords) -> RunOptions:
    """The run options that the words name.

    >>> parse_run(RunWords(repeats="7", chunk="60KiB")).chunk_bytes
    61440

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    return RunOptions(
        backend=cast("Backend", one_of(words.backend, "backend", BACKENDS)),
        blas=words.blas,
        carrier=cast("CarrierName", one_of(words.carrier, "carrier", CARRIERS)),
        chunk_bytes=_chunk_bytes(words.chunk),
        progress=_progress(words.progress),
        seed=whole_number(words.seed, "--seed", least=0),
        operands=cast("Kind", one_of(words.operands, "operands", KINDS)),
        inputs={matrix: path for matrix, path in words.inputs.items() if path},
        outputs={product: path for product, path in words.outputs.items() if path},
        warmups=whole_number(words.warmups, "--warmups", least=0),
        repeats=whole_number(words.repeats, "--repeats"),
        verify=words.verify,
        verify_method=cast(VerifyMethod, one_of(words.verify_method, "verify-method", get_args(VerifyMethod))),
        save=words.save,
        load=words.load,
    )


def _progress(text: str) -> "Progress | None":
    """What advances communication beside local work; None where the host decides."""
    word = one_of(text, "progress", PROGRESSES)
    return None if word == "auto" else cast("Progress", word)


def _chunk_bytes(text: str) -> int | None:
    """Bytes of a chunk, 0 for whole steps; None where the host decides.

    >>> _chunk_bytes("auto"), _chunk_bytes("none"), _chunk_bytes("60KiB")
    (None, 0, 61440)
    """
    if text in ("auto", "none"):
        return None if text == "auto" else 0
    try:
        return parse_bytes(text)
    except InputError:
        raise InputError(f"--chunk {text!r}: accepted are auto, none and sizes such as 60KiB") from None


def files_read(words: object) -> dict[str, str]:
    """The files that the words of an experiment or a collective name, by flag, which results must not overwrite.

    >>> from quadrille.cli.words.flags import TrainingWords
    >>> files_read(TrainingWords(gpt="shapes/mine.json", gemm_layouts="host.toml", placement="axes:z,x"))
    {'--gpt': 'shapes/mine.json', '--gemm-layouts': 'host.toml'}
    """
    named = {f"--{name.replace('_', '-')}": getattr(words, name, "") for name in NAMED_BY_FILE}
    return {flag: text for flag, text in named.items() if "/" in text or Path(text).suffix}


def parse_ranks(text: str, ranks: int) -> tuple[int, ...]:
    """Ranks written as numbers and ranges.

    >>> parse_ranks("0-2,7", 8)
    (0, 1, 2, 7)

    Parameters
    ----------
    ranks : how many there are

    Raises
    ------
    InputError : no such ranks
    """
    shown: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        last = last if dash else first
        whole = all(end.isascii() and end.isdigit() for end in (first, last))
        if not whole or not int(first) <= int(last) < ranks:
            raise InputError(f"--ranks {text}: {word.strip()!r} is no rank or range of ranks from 0 to {ranks - 1}")
        shown |= set(range(int(first), int(last) + 1))
    return tuple(sorted(shown))
