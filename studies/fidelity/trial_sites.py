"""The sites of trials: this host's shared memory, its GPU, or a laboratory that exists while the trials run.

A laboratory is a network of Linux network namespaces on this host, one namespace for each host of a topology.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.measure.batch import StartRanks
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
    """A number of ranks that share this host's memory or its GPU, or are spread evenly over a laboratory's hosts.

    >>> TrialSite(ranks=2).name, " ".join(TrialSite("star:hosts=4", "200mbit", 4).launch_arguments)
    ('shared memory', 'lab run star:hosts=4 --rate 200mbit -n 4 --')
    >>> TrialSite(ranks=4, gpu=True).name, TrialSite(ranks=4, gpu=True).run_options.backend
    ('GPU shared by 4', 'cupy')

    Parameters
    ----------
    topology : topology of the laboratory; empty for shared memory and the GPU
    rate : rate of the hosts' links; empty for the topology's own rate
    ranks : number of ranks of the calibration and of every trial
    gpu : whether the ranks share this host's GPU
    """

    topology: str = ""
    rate: str = ""
    ranks: int = 2
    gpu: bool = False

    @property
    def name(self) -> str:
        """The name of the site in tables and files."""
        if self.gpu:
            return f"{GPU} shared by {self.ranks}"
        if not self.topology:
            return SHARED_MEMORY
        return f"{self.topology} at {self.rate}" if self.rate else self.topology

    @property
    def launch_arguments(self) -> tuple[str, ...]:
        """The arguments of `quadrille` that start ranks at this site; the command of the ranks follows them."""
        if not self.topology:
            return "launch", "-n", str(self.ranks)
        rate = ("--rate", self.rate) if self.rate else ()
        return "lab", "run", self.topology, *rate, "-n", str(self.ranks), "--"

    @property
    def run_options(self) -> RunOptions:
        """The options of every run at this site; ranks that share a GPU send its arrays by MPI."""
        return RunOptions(backend="cupy", carrier="mpi") if self.gpu else RunOptions()


def laboratory_site(topology: str, rate: str, ranks: int | None) -> TrialSite | None:
    """The laboratory site that command-line flags name; None without a topology.

    Parameters
    ----------
    topology : value of `--topology`; empty if it is missing
    rate : value of `--rate`; empty for the topology's own rate
    ranks : value of `-n`; None if it is missing

    >>> laboratory_site("star:hosts=3", "150mbit", 3).name, laboratory_site("", "", None)
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
    """Check that all sites can be used, before any laboratory is created.

    Raises
    ------
    InputError : a laboratory that cannot be created here; fewer ranks than its hosts; no GPU
    """
    from quadrille.runtime.laboratory import namespaces

    sites = list(sites)
    if any(site.topology for site in sites):
        with _naming_sites_without_laboratory(sites):
            namespaces.check_allowed()
    for site in sites:
        if site.gpu:
            _gpu()
        if site.topology:
            from quadrille.experiments.laboratory.laboratory_ranks import command_with_topology

            with _naming_sites_without_laboratory(sites):
                laboratory = _laboratory(site)
            command_with_topology(laboratory.entry, site.ranks, ["calibrate"])


@contextmanager
def site_launcher(site: TrialSite) -> Iterator[StartRanks]:
    """A context with the function that starts ranks at a site; a laboratory exists inside the context only.

    On a host with several GPUs, the ranks see the first GPU only.
    """
    if site.gpu:
        from quadrille.studies.gpu.calibration import first_gpu_visible

        with first_gpu_visible():
            yield launch_or_raise
        return
    if not site.topology:
        yield launch_or_raise
        return
    from quadrille.experiments.laboratory.laboratory_ranks import laboratory_launcher
    from quadrille.runtime.laboratory.laboratory import standing as standing_laboratory

    with standing_laboratory(_laboratory(site)) as entry:
        yield laboratory_launcher(entry)


@contextmanager
def _naming_sites_without_laboratory(sites: Iterable[TrialSite]) -> Iterator[None]:
    """A context in which the error of a laboratory names the sites that need no laboratory."""
    try:
        yield
    except InputError as error:
        if any(not site.topology for site in sites):
            raise InputError(f"{error}; --sites shared needs none") from None
        raise


def _laboratory(site: TrialSite) -> "Laboratory":
    """The specification of a site's laboratory."""
    from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory

    return parse_laboratory(site.topology, site.rate)


def has_gpu() -> bool:
    """Whether this host has a GPU that CuPy can use, and that can be calibrated in every dtype."""
    try:
        _gpu()
    except InputError:
        return False
    return True


def _gpu() -> "CupyLibrary":
    """The array library of this host's first GPU."""
    from quadrille.runtime.arrays.cupy_library import open_cupy

    return open_cupy("bfloat16", 0)


def calibrate_site(site: TrialSite, launched: StartRanks, path: Path, sizes: "Sizes | None" = None) -> Machine:
    """Calibrate a site by microbenchmarks, and write and return its machine file.

    Parameters
    ----------
    site : site
    launched : function that starts ranks at the site, see `site_launcher`
    path : machine file to write
    sizes : sizes of a GPU's microbenchmarks; None: full sizes
    """
    if site.gpu:
        from quadrille.studies.gpu.calibration import FULL, measure_device

        measured = measure_device(_gpu(), [site.ranks], provenance([]), sizes or FULL)
        save_machine(measured.machine(site.ranks), str(path))
        return load_machine(str(path))
    launched(f"calibration of {site.name}", site.ranks, ["calibrate", "--out", str(path)])
    return load_machine(str(path))
