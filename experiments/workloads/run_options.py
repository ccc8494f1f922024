"""`RunOptions`: arrays, files, repeats and verification of a run; `simulate` checks these options too."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Operand, Product
from quadrille.experiments.output.destinations import same_file

if TYPE_CHECKING:
    from quadrille.runtime.arrays.array_library import Backend
    from quadrille.runtime.carriers.message_options import Progress
    from quadrille.runtime.execution.rank_environment import CarrierName
    from quadrille.runtime.operands.generator import Kind

VerifyMethod = Literal["auto", "serial", "freivalds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run that no prediction depends on, except `chunk_bytes`.

    Parameters
    ----------
    backend : array library, numpy on the host or cupy on a GPU
    blas : library of products of host arrays, a name or a path
    carrier : transport of messages between ranks: mpi, nccl, or auto for the default of the backend
    chunk_bytes : chunk size of Quadrille's own collectives [B]; 0 for whole steps; None for the default of the host
    progress : how messages advance during products; None for the default of the host
    device_memory_bytes : size of the device arena of each rank [B]; None for no limit
    seed, operands : seed of generated operands, and distribution of their elements
    inputs, outputs : path of each matrix that is read from, or written to, a file
    warmups, repeats : number of runs that are not measured, and number of measured runs
    verify, verify_method : whether the result is checked, and against what: a serial run, or Freivalds' random vectors
    save, load : paths of the checkpoints that are written at the end and read at the start; empty if there is none

    Raises
    ------
    InputError : options that exclude each other
    """

    backend: "Backend" = "numpy"
    blas: str = "numpy"
    carrier: "CarrierName" = "auto"
    chunk_bytes: int | None = None
    progress: "Progress | None" = None
    device_memory_bytes: int | None = None
    seed: int = 0
    operands: "Kind" = "uniform"
    inputs: Mapping[Operand, str] = field(default_factory=dict)
    outputs: Mapping[Product, str] = field(default_factory=dict)
    warmups: int = 1
    repeats: int = 5
    verify: bool = False
    verify_method: VerifyMethod = "auto"
    save: str = ""
    load: str = ""

    def __post_init__(self) -> None:
        if self.carrier == "nccl" and self.backend != "cupy":
            raise InputError("carrier 'nccl': it carries arrays of --backend cupy only; accepted is mpi")
        if self.blas != "numpy":
            from quadrille.runtime.arrays.blas import check_blas

            check_blas(self.blas)
            if self.backend == "cupy":
                raise InputError(
                    f"blas {self.blas!r}: is for products of host arrays, of --backend numpy; cupy has its own"
                )
        if self.device_memory_bytes is not None and (self.backend != "numpy" or self.blas != "numpy"):
            raise InputError("--device-memory: limits arrays of NumPy; accepted is --backend numpy with --blas numpy")
        if self.backend == "cupy" and (self.chunk_bytes or self.progress == "thread"):
            raise InputError("--chunk and --progress: are for messages from host arrays, of --backend numpy")

    @property
    def read(self) -> dict[str, str]:
        """The files that a run reads, by flag."""
        operands = {f"--{matrix.lower()}": path for matrix, path in self.inputs.items()}
        return operands | ({"--load": self.load} if self.load else {})

    @property
    def written(self) -> dict[str, str]:
        """The files that a run writes, by flag; a saved checkpoint may replace the loaded one."""
        products = {f"--{product.lower()}": path for product, path in self.outputs.items()}
        return products | ({"--save": self.save} if self.save else {})

    @property
    def files(self) -> dict[str, str]:
        """The files of all matrices and checkpoints, by flag."""
        return self.read | self.written

    def check_matrices(self, *, training: bool) -> None:
        """Checks the files of matrices.

        Parameters
        ----------
        training : whether the run has a backward pass

        Raises
        ------
        InputError : a file of a gradient for a forward pass, or a product that would overwrite an operand
        """
        gradients = {"dC": self.inputs.get("dC"), "dA": self.outputs.get("dA"), "dB": self.outputs.get("dB")}
        for matrix, path in () if training else gradients.items():
            if path:
                raise InputError(f"--{matrix.lower()} {path}: a forward pass has no {matrix}; give --passes training")
        for matrix, product, path in self._overwritten():
            flag, product_flag = f"--{matrix.lower()}", f"--{product.lower()}"
            raise InputError(f"{flag} and {product_flag} both name {path}: give each its own file")

    def _overwritten(self) -> Iterator[tuple[Operand, Product, str]]:
        """Operands whose file a product would overwrite."""
        for product, path in self.outputs.items():
            for matrix, read in self.inputs.items():
                if same_file(path, read):
                    yield matrix, product, path
