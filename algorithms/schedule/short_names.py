"""Short names of element types and collectives: `bf16` for bfloat16, `allreduce` for all_reduce."""

from typing import cast, get_args

from quadrille.algorithms.errors import InputError, nearest_hint
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.tensors import DType

DTYPES: dict[str, str] = {
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    **dict.fromkeys(("fp32", "f32", "single"), "float32"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("bf16",), "bfloat16"),
}
"""Full name of each short name of an element type."""
SMALL_DTYPES = ("float8", "fp8", "float4", "fp4", "mxfp", "nvfp")
"""First characters of the names of element types of 8 and 4 bits, which no tensor of a schedule has."""
KINDS: dict[str, CollectiveKind] = {kind.replace("_", ""): kind for kind in get_args(CollectiveKind)}
KINDS |= {"bcast": "broadcast", "sendrecv": "send_receive"}


def full_dtype(text: str) -> str:
    """The full name of an element type; a name without a short form stays as it is.

    >>> full_dtype("BF16"), full_dtype("tf32"), full_dtype("Float32")
    ('bfloat16', 'tf32', 'float32')
    """
    return DTYPES.get(text.lower(), text.lower())


def find_dtype(text: str) -> DType:
    """The element type with this name or short name, in any case.

    >>> find_dtype("bf16"), find_dtype("fp64")
    ('bfloat16', 'float64')

    Raises
    ------
    InputError : another word; the message suggests the nearest name
    """
    dtype, accepted = full_dtype(text), get_args(DType)
    if dtype.startswith(SMALL_DTYPES):
        raise InputError(
            f"dtype {text!r:.60}: accepted are {', '.join(accepted)}; products of training steps in 8 or 4 bits are "
            "--products fp8, mxfp8 or nvfp4 with a dtype of 16 bits"
        )
    if dtype not in accepted:
        raise InputError(
            f"dtype {text!r:.60}: accepted are {', '.join(accepted)}{nearest_hint(text, [*accepted, *DTYPES], 1)}"
        )
    return cast(DType, dtype)


def hyphenated(name: str) -> str:
    """The name of a kind or of a parameter as the command line writes it.

    >>> hyphenated("reduce_scatter")
    'reduce-scatter'
    """
    return name.replace("_", "-")


def flag_word(name: str) -> str:
    """The flag of a parameter.

    >>> flag_word("micro_batch")
    '--micro-batch'
    """
    return f"--{hyphenated(name)}"


def find_collective(text: str) -> CollectiveKind:
    """The collective with this name, in any case, with hyphens, underscores or neither.

    >>> find_collective("all-reduce"), find_collective("AllReduce"), find_collective("reducescatter")
    ('all_reduce', 'all_reduce', 'reduce_scatter')

    Raises
    ------
    InputError : another word; the message suggests the nearest name
    """
    word = text.lower().replace("-", "").replace("_", "")
    if word not in KINDS:
        names = [hyphenated(kind) for kind in get_args(CollectiveKind)]
        raise InputError(f"collective {text!r:.60}: accepted are {', '.join(names)}{nearest_hint(text, names, 1)}")
    return KINDS[word]
