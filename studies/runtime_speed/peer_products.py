"""The peers: sharded matmuls by other libraries on the ranks of a host, each as its users would write it.

A, B and C are distributed evenly over the ranks: by rows, for PyLops-MPI and ScaLAPACK by blocks.  Each rank uses its
share of the host's cores.  The peer `NumPy, one process` has whole matrices and the threads of all ranks on rank 0.
All peers except heat and ScaLAPACK use NumPy's BLAS.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from math import isqrt
from os import sched_getaffinity
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.parts import cut
from quadrille.studies.runtime_speed import scalapack

POLL_SECONDS = 0.0005


Tile = tuple[slice, slice, Any]
"""Rows and columns of a block of C, and its elements; a rank without a block has no rows."""


class Peer(Protocol):
    """A sharded matmul by another library, on one rank."""

    def multiply(self) -> None:
        """Multiply once; all ranks call this together."""

    def product(self) -> Tile:
        """The part of C that this rank holds."""


@dataclass(slots=True)
class ByHand:
    """A hand-written matmul with mpi4py: B is all-gathered, each rank multiplies its rows of A."""

    communicator: Any
    rows: slice
    a: Any
    b: Any
    whole: Any
    c: Any
    counts: list[int]

    @classmethod
    def from_operands(cls, communicator: Any, sizes: Matmul, a: Any, b: Any) -> "ByHand":
        """The matmul on this rank, with its parts of the operands.

        Parameters
        ----------
        communicator : communicator of all ranks
        sizes : sizes and dtype of the matmul
        a, b : whole operands
        """
        rank, ranks = communicator.Get_rank(), communicator.Get_size()
        rows, inner = row_range(sizes.m, ranks, rank), [row_range(sizes.k, ranks, member) for member in range(ranks)]
        counts = [(rows_of_b.stop - rows_of_b.start) * sizes.n for rows_of_b in inner]
        whole = np.empty((sizes.k, sizes.n), a.dtype)
        c = np.empty((rows.stop - rows.start, sizes.n), a.dtype)
        return cls(communicator, rows, a[rows].copy(), b[inner[rank]].copy(), whole, c, counts)

    def multiply(self) -> None:
        """Gather B and multiply this rank's rows."""
        self.communicator.Allgatherv(self.b, [self.whole, self.counts])
        np.matmul(self.a, self.whole, out=self.c)

    def product(self) -> Tile:
        """The rows of C of this rank."""
        return self.rows, slice(0, self.whole.shape[1]), self.c


@dataclass(slots=True)
class OneProcess:
    """NumPy in one process: rank 0 multiplies with the threads of all ranks while the other ranks sleep."""

    communicator: Any
    a: Any
    b: Any
    c: Any
    threads: int

    @classmethod
    def from_operands(cls, communicator: Any, sizes: Matmul, a: Any, b: Any) -> "OneProcess":
        """The matmul on this rank, with its parts of the operands.

        Parameters
        ----------
        communicator : communicator of all ranks
        sizes : sizes and dtype of the matmul
        a, b : whole operands
        """
        first, ranks = communicator.Get_rank() == 0, communicator.Get_size()
        c = np.empty((sizes.m if first else 0, sizes.n), a.dtype)
        return cls(communicator, a if first else None, b if first else None, c, ranks * threads_per_rank(ranks))

    def multiply(self) -> None:
        """Multiply on rank 0; the other ranks wait for it."""
        if self.a is not None:
            with threadpool_limits(self.threads, user_api="blas"):
                np.matmul(self.a, self.b, out=self.c)
        barrier = self.communicator.Ibarrier()
        while not barrier.Test():
            time.sleep(POLL_SECONDS)

    def product(self) -> Tile:
        """C on rank 0; no rows on other ranks."""
        return slice(0, len(self.c)), slice(0, self.c.shape[1]), self.c


@dataclass(slots=True)
class PyLops:
    """PyLops-MPI's SUMMA on a square grid of ranks, with a block of each matrix on each rank."""

    rows: slice
    columns: slice
    operator: Any
    vector: Any
    c: Any

    @classmethod
    def from_operands(cls, communicator: Any, sizes: Matmul, a: Any, b: Any) -> "PyLops":
        """The matmul on this rank, with its parts of the operands.

        Parameters
        ----------
        communicator : communicator of all ranks
        sizes : sizes and dtype of the matmul
        a, b : whole operands
        """
        import pylops_mpi
        from pylops_mpi.basicoperators.MatrixMult import local_block_split

        rank = communicator.Get_rank()
        of_a = local_block_split((sizes.m, sizes.k), rank, communicator)
        of_b = local_block_split((sizes.k, sizes.n), rank, communicator)
        rows, columns = local_block_split((sizes.m, sizes.n), rank, communicator)
        tile, block = a[of_a].copy(), b[of_b].copy()
        operator = pylops_mpi.MPIMatrixMult(tile, sizes.n, base_comm=communicator, kind="summa", dtype=a.dtype)
        vector = pylops_mpi.DistributedArray(
            global_shape=sizes.k * sizes.n,
            local_shapes=communicator.allgather(block.size),
            partition=pylops_mpi.Partition.SCATTER,
            base_comm=communicator,
            dtype=a.dtype,
        )
        vector[:] = block.ravel()
        return cls(rows, columns, operator, vector, None)

    def multiply(self) -> None:
        """Apply the operator A to the distributed B."""
        self.c = (self.operator @ self.vector).local_array

    def product(self) -> Tile:
        """The block of C of this rank."""
        shape = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        return self.rows, self.columns, self.c.reshape(shape)


@dataclass(slots=True)
class Heat:
    """Heat's matmul of two arrays that are split by rows."""

    rows: slice
    a: Any
    b: Any
    c: Any

    @classmethod
    def from_operands(cls, communicator: Any, sizes: Matmul, a: Any, b: Any) -> "Heat":
        """The matmul on this rank, with its parts of the operands.

        Parameters
        ----------
        communicator : communicator of all ranks
        sizes : sizes and dtype of the matmul
        a, b : whole operands
        """
        import heat
        import torch

        torch.set_num_threads(threads_per_rank(communicator.Get_size()))
        rank, ranks = communicator.Get_rank(), communicator.Get_size()
        rows, inner = row_range(sizes.m, ranks, rank), row_range(sizes.k, ranks, rank)
        return cls(rows, heat.array(a[rows].copy(), is_split=0), heat.array(b[inner].copy(), is_split=0), None)

    def multiply(self) -> None:
        """Multiply the distributed arrays."""
        self.c = self.a @ self.b

    def product(self) -> Tile:
        """The rows of C of this rank, after a redistribution by rows."""
        product = self.c.resplit(0).larray.numpy()
        return self.rows, slice(0, product.shape[1]), product


BY_HAND, ONE_PROCESS, SCALAPACK = "mpi4py by hand", "NumPy, one process", "ScaLAPACK"
PEERS: dict[str, Callable[[Any, Matmul, Any, Any], Peer]] = {
    BY_HAND: ByHand.from_operands,
    ONE_PROCESS: OneProcess.from_operands,
    "PyLops-MPI SUMMA": PyLops.from_operands,
    "heat": Heat.from_operands,
    SCALAPACK: scalapack.ScaLapack.from_operands,
}
PACKAGES = {"PyLops-MPI SUMMA": ("pylops_mpi",), "heat": ("heat", "torch")}
SQUARE_GRIDS_ONLY = ("PyLops-MPI SUMMA",)
"""Peers that run on a square number of ranks only."""


def missing_reason(name: str, ranks: int) -> str:
    """The reason why a peer cannot run on a number of ranks here; empty if it can."""
    if absent := [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]:
        return f"{absent[0]} is not installed"
    if name in SQUARE_GRIDS_ONLY and isqrt(ranks) ** 2 != ranks:
        return f"takes 1, 4, 9, … ranks, not {ranks}"
    return scalapack.missing_reason() if name == SCALAPACK else ""


def versions(names: Collection[str]) -> dict[str, str]:
    """The versions of the packages and libraries of some peers, by their names."""
    packages = [package for name in names for package in PACKAGES.get(name, ())]
    installed = {package: metadata.version(package) for package in packages}
    return installed | ({SCALAPACK: scalapack.version()} if SCALAPACK in names else {})


def row_range(size: int, parts: int, index: int) -> slice:
    """The rows of part `index` of `size` rows that are divided evenly into `parts`."""
    return slice(*cut(size, parts, index))


def threads_per_rank(ranks: int) -> int:
    """The number of threads of a rank: its share of the cores that this process may use."""
    return max(1, len(sched_getaffinity(0)) // ranks)
