"""How an experiment is run, beside what it is: arrays, files, repeats and verification; `simulate` checks it too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, cast, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.forms import Operand, Product
from quadrille.algorithms.units import parse_bytes
from quadrille.experiments.options.values import one_of, whole_number
from quadrille.experiments.output.destinations import same_file
from quadrille.runtime.arrays.array_library import Backend
from quadrille.runtime.arrays.blas import NUMPY_BLAS, check_blas
from quadrille.runtime.carriers.message_options import Progress
from quadrille.runtime.execution.rank_environment import CarrierName
from quadrille.runtime.operands.generator import Kind

Checked = Literal["auto", "serial", "freivalds"]
NAMED_BY_FILE = ("gpt", "gemm_layouts", "placement")
"""Flags that take a name or a rule, or a file instead: one with a folder or an ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """The flags that say how it is run, as they were typed; the defaults are those of the command line.

    A prediction takes them too and checks them; of all but `chunk`, where sends are buffered, it is the same.
    `inputs` and `outputs` are paths by matrix, empty where there is no file.
    """

    backend: str = "numpy"
    blas: str = NUMPY_BLAS
    carrier: str = "auto"
    chunk: str = "auto"
    progress: str = "auto"
    seed: str = "0"
    operands: str = "uniform"
    inputs: Mapping[Operand, str] = field(default_factory=dict)
    outputs: Mapping[Product, str] = field(default_factory=dict)
    warmups: str = "1"
    repeats: str = "5"
    verify: bool = False
    verify_method: str = "auto"
    save: str = ""
    load: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How an experiment is run: on what arrays, from and to which files, how often, and whether it is verified."""

    backend: Backend
    carrier: CarrierName
    chunk_bytes: int | None
    progress: Progress | None
    seed: int
    kind: Kind
    inputs: Mapping[Operand, str]
    outputs: Mapping[Product, str]
    warmups: int
    repeats: int
    checked: Checked | None
    save: str = ""
    load: str = ""
    blas: str = NUMPY_BLAS

    @property
    def files(self) -> dict[str, str]:
        """Paths of all matrices and checkpoints, by the flag that names them."""
        inputs = {f"--{matrix.lower()}": path for matrix, path in self.inputs.items()}
        return inputs | self.written | ({"--load": self.load} if self.load else {})

    @property
    def written(self) -> dict[str, str]:
        """Those that a run writes: products and the checkpoint, which may take the place of the one that it loads."""
        products = {f"--{product.lower()}": path for product, path in self.outputs.items()}
        return products | ({"--save": self.save} if self.save else {})


def files_read(flags: object) -> dict[str, str]:
    """The files that flags of an experiment or a collective name, by flag, which results must not overwrite.

    >>> from quadrille.experiments.workloads.training_flags import TrainingFlags
    >>> files_read(TrainingFlags(gpt="shapes/mine.json", gemm_layouts="host.toml", placement="axes:z,x"))
    {'--gpt': 'shapes/mine.json', '--gemm-layouts': 'host.toml'}
    """
    named = {f"--{name.replace('_', '-')}": getattr(flags, name, "") for name in NAMED_BY_FILE}
    return {flag: text for flag, text in named.items() if "/" in text or Path(text).suffix}


class Planned(Protocol):
    """What can be run, and says which flags of a run it has no use for."""

    def check_run(self, flags: RunFlags) -> None:
        """Refuse flags of a run that cannot be of this experiment (InputError)."""


def parse_plan(flags: RunFlags, experiment: Planned) -> Plan:
    """The plan that the flags name.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    checked = cast(Checked, one_of(flags.verify_method, "verify-method", get_args(Checked)))
    experiment.check_run(flags)
    plan = Plan(
        cast(Backend, one_of(flags.backend, "backend", get_args(Backend))),
        cast(CarrierName, one_of(flags.carrier, "carrier", get_args(CarrierName))),
        _chunk_bytes(flags.chunk),
        _progress(flags.progress),
        whole_number(flags.seed, "--seed", least=0),
        cast(Kind, one_of(flags.operands, "operands", get_args(Kind))),
        {matrix: path for matrix, path in flags.inputs.items() if path},
        {product: path for product, path in flags.outputs.items() if path},
        whole_number(flags.warmups, "--warmups", least=0),
        whole_number(flags.repeats, "--repeats"),
        checked if flags.verify else None,
        flags.save,
        flags.load,
        flags.blas,
    )
    if plan.carrier == "nccl" and plan.backend != "cupy":
        raise InputError("carrier 'nccl': it carries arrays of --backend cupy only; accepted is mpi")
    check_blas(plan.blas)
    if plan.backend == "cupy" and plan.blas != NUMPY_BLAS:
        raise InputError(f"blas {plan.blas!r}: is for products of host arrays, of --backend numpy; cupy has its own")
    if plan.backend == "cupy" and (plan.chunk_bytes or plan.progress == "thread"):
        raise InputError("--chunk and --progress: are for messages from host arrays, of --backend numpy")
    return plan


def _progress(text: str) -> Progress | None:
    """What advances communication beside local work; None where the place decides."""
    found = one_of(text, "progress", ("auto", *get_args(Progress)))
    return None if found == "auto" else cast(Progress, found)


def _chunk_bytes(text: str) -> int | None:
    """Bytes of a chunk, 0 for whole steps; None where the place decides.

    >>> _chunk_bytes("auto"), _chunk_bytes("none"), _chunk_bytes("60KiB")
    (None, 0, 61440)
    """
    if text in ("auto", "none"):
        return None if text == "auto" else 0
    try:
        return parse_bytes(text)
    except InputError:
        raise InputError(f"--chunk {text!r}: accepted are auto, none and sizes such as 60KiB") from None


def check_matrices(flags: RunFlags, *, training: bool) -> None:
    """Refuse files of gradients in a forward pass, and a product that would take the place of an operand."""
    if not training:
        given = {"dC": flags.inputs.get("dC"), "dA": flags.outputs.get("dA"), "dB": flags.outputs.get("dB")}
        for matrix, path in given.items():
            if path:
                raise InputError(f"--{matrix.lower()} {path}: a forward pass has no {matrix}; give --passes training")
    for product, path in flags.outputs.items():
        for matrix, read in flags.inputs.items():
            if path and read and same_file(path, read):
                flag, other = f"--{matrix.lower()}", f"--{product.lower()}"
                raise InputError(f"{flag} and {other} both name {path}: give each its own file")
