"""`quadrille operands`: writes generated matrices to files, with the elements that ranks would generate."""

from collections.abc import Mapping

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.atomic_files import writer_token
from quadrille.algorithms.matmuls.matmul import Matmul, Operand
from quadrille.runtime.files.matrix_files import (
    MatrixWriter,
    check_writable,
    commit_all,
    discard_all,
    file_dtype,
    open_operands,
)
from quadrille.runtime.files.shared_files import WRITE_BYTES
from quadrille.runtime.operands.generator import Kind
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.operands.rectangles import Rectangle


def write_operands(problem: Matmul, *, seed: int = 0, kind: Kind = "uniform", paths: Mapping[Operand, str]) -> None:
    """Writes operands to .npy files, all of them or none.

    Parameters
    ----------
    problem : sizes, dtype and stored layout of the operands
    seed, kind : seed of the generator, and distribution of the elements, `uniform` or `integers`
    paths : path of each matrix that is written

    Raises
    ------
    InputError : no path, a path that cannot be written, or sizes that are not possible
    """
    if not paths:
        raise InputError("operands: no file is named; --a, --b or --dc FILE.npy is needed")
    training = "dC" in paths
    operands = open_operands(
        problem.m,
        problem.k,
        problem.n,
        problem.dtype,
        seed=seed,
        kind=kind,
        training=training,
        transposed=problem.transposed,
    )
    token = writer_token()
    writers = {
        matrix: MatrixWriter(
            path, operands.shape(matrix), file_dtype(problem.dtype), flag=f"--{matrix.lower()}", token=token
        )
        for matrix, path in paths.items()
    }
    check_writable(list(writers.values()))
    try:
        for matrix, writer in writers.items():
            _write(writer, matrix, operands)
        commit_all(list(writers.values()))
    finally:
        discard_all(list(writers.values()))


def _write(writer: MatrixWriter, matrix: Operand, operands: Operands) -> None:
    """Generates one matrix and writes it, some rows at a time."""
    rows, columns = operands.shape(matrix)
    step = max(1, WRITE_BYTES // (columns * operands.array_dtype.itemsize))
    writer.create()
    for top in range(0, rows, step):
        part = Rectangle(top, min(top + step, rows), 0, columns)
        writer.write(part, operands.block(matrix, part))
    writer.close()
