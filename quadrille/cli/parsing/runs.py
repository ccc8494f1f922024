"""From flags to run options (backend, carrier, repeats, verification, files), and the files that flags name."""

from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import parse_bytes
from quadrille.cli.parsing.flags import RunFlags
from quadrille.cli.parsing.numbers import one_of, whole_number
from quadrille.experiments.workloads.run_options import RunOptions, VerifyMethod

if TYPE_CHECKING:
    from quadrille.runtime.arrays.array_library import Backend
    from quadrille.runtime.carriers.message_options import Progress
    from quadrille.runtime.execution.rank_environment import CarrierName
    from quadrille.runtime.operands.generator import Kind

BACKENDS, CARRIERS = ("numpy", "cupy"), ("auto", "mpi", "nccl")
PROGRESSES, KINDS = ("auto", "none", "thread"), ("uniform", "integers")
NAMED_BY_FILE = ("gpt", "gemm_layouts", "placement")
"""Flags that accept a name or a file; a text with a folder or a suffix is a file."""


def parse_run(flags: RunFlags) -> RunOptions:
    """The run options that the flags describe.

    >>> parse_run(RunFlags(repeats="7", chunk="60KiB")).chunk_bytes
    61440

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    return RunOptions(
        backend=cast("Backend", one_of(flags.backend, "backend", BACKENDS)),
        blas=flags.blas,
        carrier=cast("CarrierName", one_of(flags.carrier, "carrier", CARRIERS)),
        chunk_bytes=_chunk_bytes(flags.chunk),
        progress=_progress(flags.progress),
        device_memory_bytes=_device_memory(flags.device_memory),
        seed=whole_number(flags.seed, "--seed", least=0),
        operands=cast("Kind", one_of(flags.operands, "operands", KINDS)),
        inputs={matrix: path for matrix, path in flags.inputs.items() if path},
        outputs={product: path for product, path in flags.outputs.items() if path},
        warmups=whole_number(flags.warmups, "--warmups", least=0),
        repeats=whole_number(flags.repeats, "--repeats"),
        verify=flags.verify,
        verify_method=cast(VerifyMethod, one_of(flags.verify_method, "verify-method", get_args(VerifyMethod))),
        save=flags.save,
        load=flags.load,
    )


def _progress(text: str) -> "Progress | None":
    """The means that advances communication during local work; None if the default of the host applies."""
    word = one_of(text, "progress", PROGRESSES)
    return None if word == "auto" else cast("Progress", word)


def _device_memory(text: str) -> int | None:
    """The size of the device arena of each rank [B]; None for no limit.

    >>> _device_memory(""), _device_memory("2MiB")
    (None, 2097152)
    """
    if not text:
        return None
    try:
        size = parse_bytes(text)
    except InputError:
        size = 0
    if size < 1:
        raise InputError(f"--device-memory {text!r}: a size from 1 byte is accepted, such as 2GiB")
    return size


def _chunk_bytes(text: str) -> int | None:
    """The chunk size [B], 0 for whole messages; None if the default of the host applies.

    >>> _chunk_bytes("auto"), _chunk_bytes("none"), _chunk_bytes("60KiB")
    (None, 0, 61440)
    """
    if text in ("auto", "none"):
        return None if text == "auto" else 0
    try:
        return parse_bytes(text)
    except InputError:
        raise InputError(f"--chunk {text!r}: accepted are auto, none and sizes such as 60KiB") from None


def files_read(flags: object) -> dict[str, str]:
    """The input files that the flags of an experiment or a collective name, by flag; results must not overwrite them.

    >>> from quadrille.cli.parsing.flags import TrainingFlags
    >>> files_read(TrainingFlags(gpt="shapes/mine.json", gemm_layouts="host.toml", placement="axes:z,x"))
    {'--gpt': 'shapes/mine.json', '--gemm-layouts': 'host.toml'}
    """
    named = {f"--{name.replace('_', '-')}": getattr(flags, name, "") for name in NAMED_BY_FILE}
    if ".json," in named["--gpt"]:  # changes of the model follow its file
        from quadrille.algorithms.training.model_files import base_and_changes

        named["--gpt"], _ = base_and_changes(named["--gpt"])
    return {flag: text for flag, text in named.items() if "/" in text or Path(text).suffix}


def parse_ranks(text: str, ranks: int) -> tuple[int, ...]:
    """The ranks in a text of numbers and ranges.

    >>> parse_ranks("0-2,7", 8)
    (0, 1, 2, 7)

    Parameters
    ----------
    text : numbers and ranges as typed
    ranks : number of all ranks

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
