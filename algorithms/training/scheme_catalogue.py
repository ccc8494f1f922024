"""Catalogue of parallel schemes: the distribution of a training step over the grid, by name.

    4d         AxoNN: data, z, y, x           activations replicated, weights sharded over z; context too
    megatron   Megatron-LM: data, context, x  the 4D scheme on x alone; optional sequence parallelism
    bian       Bian's 3-D: data, z, y, x      activations scattered in whole sequences, vectors on a diagonal
    optimus    Optimus 2-D: data, z, x        SUMMA on a z × x mesh
    tesseract  Tesseract 2.5-D: data, z, y, x y such meshes

All accept a pipeline axis.  The eight algorithms of Bian et al. are the layouts of a product: C = A B is the forward
pass (NN), C = A B^T the gradient of I (NT), C = A^T B that of W (TN), and their gradients are among these again; the
matrix-vector pair is `vector_parameters.diagonal_vector`.
"""

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.algorithms.training.scheme_mesh import SchemeMesh

ALL: tuple[Axis, ...] = ("data", "z", "y", "x")
OF_MEGATRON: tuple[Axis, ...] = ("data", "context", "x")
SCHEMES: dict[str, Scheme] = {
    "4d": Scheme4D(),
    "megatron": Scheme4D("megatron", axes=OF_MEGATRON),
    "optimus": SchemeMesh("optimus", axes=("data", "z", "x")),
    "tesseract": SchemeMesh("tesseract", axes=ALL),
    "bian": Scheme4D("bian", "sequences scattered", "diagonal", axes=ALL),
}
SEQUENCE_PARALLEL: dict[str, Scheme] = {
    "megatron": Scheme4D("megatron", "rows scattered", axes=OF_MEGATRON),
}


def find_scheme(name: str, *, sequence_parallel: bool = False) -> Scheme:
    """Returns the scheme of that name, with sequence parallelism if requested.

    >>> find_scheme("megatron", sequence_parallel=True).stream.finer
    ('x',)

    Raises
    ------
    InputError : an unknown name, or a scheme without sequence parallelism
    """
    if name not in SCHEMES:
        raise InputError(f"scheme {name!r}: accepted are {', '.join(SCHEMES)}")
    if not sequence_parallel:
        return SCHEMES[name]
    if name not in SEQUENCE_PARALLEL:
        accepted = ", ".join(SEQUENCE_PARALLEL)
        raise InputError(f"--sequence-parallel with scheme {name}: it is accepted with {accepted}")
    return SEQUENCE_PARALLEL[name]
