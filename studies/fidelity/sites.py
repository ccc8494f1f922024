"""Where trials run: in this host's shared memory, on its GPU, or in a laboratory that stands for as long as they do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.measure.batch import Launched
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import load_machine, save_machine

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary
    from quadrille.runtime.laboratory.laboratory import Laboratory
    from quadrille.studies.gpu.calibration import Sizes

SHARED_MEMORY = "shared memory"
GPU = "GPU"


@dataclass(frozen=True, slots=True)
class TrialSite:
    """Ranks that share a host's memory, or its GPU, or ranks spread evenly over the hosts of a topology.

    >>> TrialSite(ranks=2).name, " ".join(TrialSite("star:hosts=4", "200mbit", 4).words)
    ('shared memory', 'lab run star:hosts=4 --rate 200mbit -n 4 --')
    >>> TrialSite(ranks=4, gpu=True).name, TrialSite(ranks=4, gpu=True).run_options.backend
    ('GPU shared by 4', 'cupy')

    Parameters
    ----------
    topology : topology of the laboratory; empty for shared memory and the GPU
    rate : rate of the hosts' links; empty for the topology's own rate
    ranks : number of ranks of the calibration and of every trial
    """

    topology: str = ""
    rate: str = ""
    ranks: int = 2
    gpu: bool = False

    @property
    def name(self) -> str:
        if self.gpu:
            return f"{GPU} shared by {self.ranks}"
        if not self.topology:
            return SHARED_MEMORY
        return f"{self.topology} at {self.rate}" if self.rate else self.topology

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command line that start a command at this site; the command follows them."""
        if not self.topology:
            return "launch", "-n", str(self.ranks)
        rate = ("--rate", self.rate) if self.rate else ()
        return "lab", "run", self.topology, *rate, "-n", str(self.ranks), "--"

    @property
    def run_options(self) -> RunOptions:
        """Options of every run at this site; ranks that share a GPU send its arrays by MPI."""
        return RunOptions(backend="cupy", carrier="mpi") if self.gpu else RunOptions()


def asked_site(topology: str, rate: str, ranks: int | None) -> TrialSite | None:
    """The laboratory site that the options name; None without a topology.

    >>> asked_site("star:hosts=3", "150mbit", 3).name, asked_site("", "", None)
    ('star:hosts=3 at 150mbit', None)

    Raises
    ------
    InputError : a topology without a number of ranks, or a rate or a number of ranks without a topology
    """
    if not topology:
        for flag, value in (("--rate", rate), ("-n", ranks)):
            if value:
                raise InputError(f"{flag} {value}: goes with --topology TOPOLOGY")
        return None
    if ranks is None:
        raise InputError(f"--topology {topology}: goes with -n RANKS")
    return TrialSite(topology, rate, ranks)


def check_sites(sites: Iterable[TrialSite]) -> None:
    """Refuse, before anything stands, sites that cannot.

    Raises
    ------
    InputError : no laboratory may be made here, or not this one; fewer ranks than it has hosts; no GPU
    """
    sites = list(sites)
    for site in sites:
        if site.gpu:
            _gpu()
        if site.topology:
            from quadrille.experiments.laboratory.ranks import with_topology

            with_topology(_asked(site, others=sites).entry, site.ranks, ["calibrate"])


@contextmanager
def standing(site: TrialSite) -> Iterator[Launched]:
    """What starts ranks at the site, while it stands; of several GPUs they see the first only."""
    if site.gpu:
        from quadrille.studies.gpu.calibration import first_gpu_visible

        with first_gpu_visible():
            yield launch_or_raise
        return
    if not site.topology:
        yield launch_or_raise
        return
    from quadrille.experiments.laboratory.ranks import launched_in
    from quadrille.runtime.laboratory.laboratory import standing as standing_laboratory

    with standing_laboratory(_laboratory(site)) as entry:
        yield launched_in(entry)


def _asked(site: TrialSite, others: Iterable[TrialSite]) -> "Laboratory":
    """The site's laboratory; if no laboratory can start here, the error names the sites that need none."""
    try:
        return _laboratory(site)
    except InputError as error:
        if any(not site.topology for site in others):
            raise InputError(f"{error}; --sites shared needs none") from None
        raise


def _laboratory(site: TrialSite) -> "Laboratory":
    from quadrille.experiments.laboratory.command import laboratory_of

    return laboratory_of(site.topology, site.rate)


def has_gpu() -> bool:
    """Whether this host has a GPU that CuPy can use, and that can be calibrated in every dtype."""
    try:
        _gpu()
    except InputError:
        return False
    return True


def _gpu() -> "CupyLibrary":
    from quadrille.runtime.arrays.cupy_library import open_cupy

    return open_cupy("bfloat16", 0)


def calibrated(site: TrialSite, launched: Launched, path: Path, sizes: "Sizes | None" = None) -> Machine:
    """The site's machine, from microbenchmarks alone, in a file of its own.

    Parameters
    ----------
    sizes : sizes of the microbenchmarks of a GPU; None for the full ones
    """
    if site.gpu:
        from quadrille.studies.gpu.calibration import FULL, measure_device

        measured = measure_device(_gpu(), [site.ranks], provenance([]), sizes or FULL)
        save_machine(measured.machine(site.ranks), str(path))
        return load_machine(str(path))
    launched(f"calibration of {site.name}", site.ranks, ["calibrate", "--out", str(path)])
    return load_machine(str(path))
