"""What is predicted and measured: multiplications and training steps at sites, by plan or drawn by a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import numpy as np

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.matmuls.catalogue import AlgorithmName, find_algorithm
from quadrille.algorithms.matmuls.matmul import Matmul, Passes
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.mlp import Mlp
from quadrille.experiments.measure.batch import RunCase
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.experiments.workloads.grids import grids
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.studies.fidelity.sites import TrialSite, has_gpu

NO_OVERLAP = "none"
Alternative = frozenset[OverlapName]
NONE: Alternative = frozenset()
RATE = "200mbit"
SITES = (
    TrialSite(ranks=2),
    TrialSite("star:hosts=4", RATE, 4),
    TrialSite("dumbbell:hosts=4", RATE, 4),
    TrialSite("leaf-spine:leaves=2,spines=2,hosts_per_leaf=2", RATE, 4),
    TrialSite("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2", RATE, 4),
)
"""Those of the matrix: shared memory, one switch, one cable for all, a fabric that blocks nothing, and one of 2:1."""
GPU_SITES = (TrialSite(ranks=2, gpu=True), TrialSite(ranks=4, gpu=True))
"""In the matrix, too, where there is a GPU."""
BANDS = 4
PRODUCT = {2: Matmul(2048, 2048, 2048), 4: Matmul(1536, 1536, 1536)}
GPU_PRODUCT = Matmul(8192, 8192, 8192)
LIBRARY = Choices("library")


def mlp(widths: tuple[int, ...], rows: int) -> Mlp:
    """A stack of layers with the default learning rate."""
    return Mlp(widths, rows, adam=Adam(rate=default_rate(max(widths))))


STEP = mlp((1024, 4096, 1024), 1024)
GPU_STEP = mlp((4096, 16384, 4096), 8192)
DRAWN_SITES = 12
"""Cases for each site that is drawn: a site has to be calibrated."""
LEAST, MOST = 384, 2560
"""Sizes of dimensions that are drawn."""
LIBRARY_SHARE, STEP_SHARE = 0.25, 0.3


@dataclass(frozen=True, slots=True)
class Trial:
    """One multiplication or training step at one site."""

    site: TrialSite
    experiment: Experiment

    def command(self, options: RunOptions) -> str:
        """The command that measures it with these run options."""
        return " ".join(["quadrille", *self.site.words, "run", *RunCase(self.experiment, "", options).words()])

    @property
    def words(self) -> list[str]:
        """The words of its command line, however often it runs."""
        return RunCase(self.experiment, "", self.site.run_options).words()

    @property
    def overlap(self) -> str:
        """What runs beside products, in words.

        >>> execution = ExecutionOptions(overlaps=frozenset({"oar"}), bands=4)
        >>> Trial(SITES[0], TrainingExperiment(STEP, execution=execution)).overlap
        'oar in 4 bands'
        """
        execution = self.experiment.execution
        names = ",".join(execution.overlap_names) or NO_OVERLAP
        return names + (f" in {execution.bands} bands" if execution.bands > 1 else "")

    @property
    def library(self) -> bool:
        """Whether MPI's library carries out the collectives."""
        return self.experiment.execution.choices.implementation == "library"


def matrix(sites: Sequence[TrialSite] | None = None) -> list[Trial]:
    """Trials of every algorithm, forward and training, with each overlap, all overlaps, bands and both collectives.

    >>> trials = matrix()
    >>> len({(trial.site, *trial.words) for trial in trials}) == len(trials)
    True

    Parameters
    ----------
    sites : sites of the trials; by default all sites, with the GPU if there is one
    """
    if sites is None:
        sites = (*SITES, *(GPU_SITES if has_gpu() else ()))
    return [Trial(site, experiment) for site in sites for experiment in (*_products(site), *_steps(site))]


def _products(site: TrialSite) -> Iterator[Experiment]:
    problem = GPU_PRODUCT if site.gpu else PRODUCT[site.ranks]
    for name in get_args(AlgorithmName):
        for grid in _chosen(name, site.ranks):
            for passes in get_args(Passes):
                plain = MatmulExperiment(replace(problem, passes=passes), grid, name)
                overlaps = _overlaps(grid, layers=1) if name == "4d" and passes == "training" else []
                yield from (_with(plain, overlaps=overlap) for overlap in [NONE, *overlaps])
                yield _with(plain, choices=LIBRARY)


def _steps(site: TrialSite) -> Iterator[Experiment]:
    for grid in _chosen("4d", site.ranks):
        plain, overlaps = TrainingExperiment(GPU_STEP if site.gpu else STEP, grid), _overlaps(grid, layers=2)
        yield from (_with(plain, overlaps=overlap) for overlap in [NONE, *overlaps])
        if _sums(grid, layers=2):
            yield _with(plain, overlaps=[NONE, *overlaps][-1], bands=BANDS)
        yield _with(plain, choices=LIBRARY)


def _with(experiment: Experiment, **options: Any) -> Experiment:
    """The experiment with other execution options."""
    return replace(experiment, execution=replace(experiment.execution, **options))


def _chosen(algorithm: str, ranks: int) -> list[Grid]:
    """The grid of an algorithm whose longest axis is shortest; of 4d all that cut the product on two axes, or one."""
    fitting = grids(ranks, find_algorithm(algorithm))
    longest = [max(grid.length(axis) for axis in grid.order) for grid in fitting]
    best = [grid for grid, length in zip(fitting, longest, strict=True) if length == min(longest)]
    return [grid for grid in best if grid.data == 1] if algorithm == "4d" else best[:1]


def _overlaps(grid: Grid, *, layers: int) -> list[Alternative]:
    """The overlaps that have something to hide on this grid, each alone, and all of them."""
    hides = (_sums_gradients(grid, layers=layers), grid.z > 1, grid.z > 1)
    names = [name for name, is_hidden in zip(("oar", "ors", "oag"), hides, strict=True) if is_hidden]
    each = [frozenset({cast(OverlapName, name)}) for name in names]
    return [*each, frozenset().union(*each)] if len(each) > 1 else each


def _sums_gradients(grid: Grid, *, layers: int) -> bool:
    """Whether gradients of inputs are summed over ranks: of a product over x, of layers over x and y in turn.

    The first layer needs none.
    """
    return grid.x > 1 if layers == 1 else grid.y > 1 or (layers > 2 and grid.x > 1)


def _sums(grid: Grid, *, layers: int) -> bool:
    """Whether products are summed over ranks."""
    return grid.x > 1 or (layers > 1 and grid.y > 1)


def draw(seed: int, cases: int, site: TrialSite | None = None) -> list[Trial]:
    """Trials outside the matrix, reproducible by seed: other topologies, rates, sizes, grids and dtypes.

    Parameters
    ----------
    site : site of all trials; by default sites are drawn too

    >>> draw(3, 5) == draw(3, 5), len(draw(3, 5)), draw(3, 5) == draw(4, 5)
    (True, 5, False)
    """
    random, cutting = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    sites = [site] if site is not None else [_drawn_site(random) for _ in range(-(-cases // DRAWN_SITES))]
    drawn = [
        (drawn_site, _drawn(random, drawn_site.ranks))
        for drawn_site in (sites[number % len(sites)] for number in range(cases))
    ]
    return [Trial(site, _in_drawn_bands(cutting, experiment)) for site, experiment in drawn]


def _drawn_site(random: np.random.Generator) -> TrialSite:
    rate = f"{int(random.integers(60, 400))}mbit"
    kind, hosts = random.choice(["star", "dumbbell", "leaf-spine"]), int(random.choice([3, 4, 6, 8]))
    if kind != "leaf-spine":
        return TrialSite(f"{kind}:hosts={hosts}", rate, hosts)
    under = max(2, hosts // 2)
    spines = int(random.integers(1, under + 1))
    return TrialSite(f"leaf-spine:leaves=2,spines={spines},hosts_per_leaf={under}", rate, 2 * under)


def _drawn(random: np.random.Generator, ranks: int) -> Experiment:
    choices = LIBRARY if random.random() < LIBRARY_SHARE else Choices()
    if random.random() < STEP_SHARE:
        return _drawn_step(random, ranks, choices)
    names = [name for name in get_args(AlgorithmName) if grids(ranks, find_algorithm(name))]
    algorithm = cast(AlgorithmName, str(random.choice(names)))
    passes = cast(Passes, str(random.choice(["forward", "training"])))
    fitting = grids(ranks, find_algorithm(algorithm))
    grid = fitting[int(random.integers(len(fitting)))]
    m, k, n = (_size(random) for _ in "mkn")
    dtype = cast(DType, str(random.choice(["float32", "float64"])))
    problem = Matmul(m, k, n, dtype, passes)
    experiment = MatmulExperiment(problem, grid, algorithm, ExecutionOptions(choices=choices))
    return _with_overlap(random, experiment, layers=1) if algorithm == "4d" and passes == "training" else experiment


def _drawn_step(random: np.random.Generator, ranks: int, choices: Choices) -> Experiment:
    fitting = grids(ranks, find_algorithm("4d"))
    layers = int(random.integers(2, 4))
    widths = tuple(_size(random) for _ in range(layers + 1))
    grid = fitting[int(random.integers(len(fitting)))]
    experiment = TrainingExperiment(mlp(widths, _size(random)), grid, execution=ExecutionOptions(choices=choices))
    return _with_overlap(random, experiment, layers=layers)


def _in_drawn_bands(random: np.random.Generator, experiment: Experiment) -> Experiment:
    """Some training steps by our collectives in bands."""
    bands = int(random.choice(["1", "1", "2", "4"]))
    own = experiment.execution.choices.implementation == "own"
    cut = isinstance(experiment, TrainingExperiment) and own and _sums(experiment.grid, layers=2)
    return _with(experiment, bands=bands) if cut else experiment


def _with_overlap(random: np.random.Generator, experiment: Experiment, *, layers: int) -> Experiment:
    """The experiment with drawn overlaps that have something to hide; without overlap for the library's collectives."""
    alternatives = [NONE, *_overlaps(experiment.grid, layers=layers)]
    words = [",".join(name for name in OVERLAPS if name in overlaps) or NO_OVERLAP for overlaps in alternatives]
    chosen = alternatives[words.index(str(random.choice(words)))]
    return experiment if experiment.execution.choices == LIBRARY else _with(experiment, overlaps=chosen)


def _size(random: np.random.Generator) -> int:
    return int(LEAST * (MOST / LEAST) ** random.random())
