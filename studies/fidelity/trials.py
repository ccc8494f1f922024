"""The trials of the fidelity study: matmuls and training steps at sites, from a fixed matrix or drawn by a seed."""

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
from quadrille.studies.fidelity.trial_sites import TrialSite, has_gpu

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
"""Sites of the matrix: shared memory, one switch, one shared cable, a non-blocking fabric, and a fabric of 2:1."""
GPU_SITES = (TrialSite(ranks=2, gpu=True), TrialSite(ranks=4, gpu=True))
"""Sites that are added to the matrix if this host has a GPU."""
BANDS = 4
PRODUCT = {2: Matmul(2048, 2048, 2048), 4: Matmul(1536, 1536, 1536)}
GPU_PRODUCT = Matmul(8192, 8192, 8192)
LIBRARY = Choices("library")


def mlp(widths: tuple[int, ...], rows: int) -> Mlp:
    """A multi-layer perceptron that Adam trains with the default learning rate.

    Parameters
    ----------
    widths : width of the input and of each layer
    rows : number of rows of a batch
    """
    return Mlp(widths, rows, adam=Adam(rate=default_rate(max(widths))))


STEP = mlp((1024, 4096, 1024), 1024)
GPU_STEP = mlp((4096, 16384, 4096), 8192)
CASES_PER_SITE = 12
"""Number of drawn cases for each drawn site, because each site has to be calibrated."""
SMALLEST_SIZE, LARGEST_SIZE = 384, 2560
"""Range of the drawn sizes of matrices."""
LIBRARY_SHARE, STEP_SHARE = 0.25, 0.3


@dataclass(frozen=True, slots=True)
class Trial:
    """One matmul or training step at one site."""

    site: TrialSite
    experiment: Experiment

    def command(self, options: RunOptions) -> str:
        """The command line that measures the trial with these run options."""
        return " ".join(
            ["quadrille", *self.site.launch_arguments, "run", *RunCase(self.experiment, "", options).words()]
        )

    @property
    def arguments(self) -> list[str]:
        """The arguments of `quadrille run` or `simulate` for the trial, without the number of repeats."""
        return RunCase(self.experiment, "", self.site.run_options).words()

    @property
    def overlap(self) -> str:
        """The overlaps of communication with matrix products and the number of bands, as text.

        >>> execution = ExecutionOptions(overlaps=frozenset({"oar"}), bands=4)
        >>> Trial(SITES[0], TrainingExperiment(STEP, execution=execution)).overlap
        'oar in 4 bands'
        """
        execution = self.experiment.execution
        names = ",".join(execution.overlap_names) or NO_OVERLAP
        return names + (f" in {execution.bands} bands" if execution.bands > 1 else "")

    @property
    def is_by_library(self) -> bool:
        """Whether the MPI library executes the collectives."""
        return self.experiment.execution.choices.implementation == "library"


def matrix(sites: Sequence[TrialSite] | None = None) -> list[Trial]:
    """The fixed trials: every algorithm, forward and training, each overlap, bands, and both kinds of collectives.

    >>> trials = matrix()
    >>> len({(trial.site, *trial.arguments) for trial in trials}) == len(trials)
    True

    Parameters
    ----------
    sites : sites of the trials; by default all sites, with the GPU if there is one
    """
    if sites is None:
        sites = (*SITES, *(GPU_SITES if has_gpu() else ()))
    return [Trial(site, experiment) for site in sites for experiment in (*_matmuls(site), *_steps(site))]


def _matmuls(site: TrialSite) -> Iterator[Experiment]:
    """The matmuls of the matrix at a site."""
    problem = GPU_PRODUCT if site.gpu else PRODUCT[site.ranks]
    for name in get_args(AlgorithmName):
        for grid in _most_even_grids(name, site.ranks):
            for passes in get_args(Passes):
                plain = MatmulExperiment(replace(problem, passes=passes), grid, name)
                overlaps = _overlaps(grid, layers=1) if name == "4d" and passes == "training" else []
                yield from (_with_options(plain, overlaps=overlap) for overlap in [NONE, *overlaps])
                yield _with_options(plain, choices=LIBRARY)


def _steps(site: TrialSite) -> Iterator[Experiment]:
    """The training steps of the matrix at a site."""
    for grid in _most_even_grids("4d", site.ranks):
        plain, overlaps = TrainingExperiment(GPU_STEP if site.gpu else STEP, grid), _overlaps(grid, layers=2)
        yield from (_with_options(plain, overlaps=overlap) for overlap in [NONE, *overlaps])
        if _sums_products(grid, layers=2):
            yield _with_options(plain, overlaps=[NONE, *overlaps][-1], bands=BANDS)
        yield _with_options(plain, choices=LIBRARY)


def _with_options(experiment: Experiment, **options: Any) -> Experiment:
    """The experiment with changed execution options."""
    return replace(experiment, execution=replace(experiment.execution, **options))


def _most_even_grids(algorithm: str, ranks: int) -> list[Grid]:
    """The grids of an algorithm whose longest axis is the shortest: for 4d all without a data axis, otherwise one."""
    fitting = grids(ranks, find_algorithm(algorithm))
    longest = [max(grid.length(axis) for axis in grid.order) for grid in fitting]
    best = [grid for grid, length in zip(fitting, longest, strict=True) if length == min(longest)]
    return [grid for grid in best if grid.data == 1] if algorithm == "4d" else best[:1]


def _overlaps(grid: Grid, *, layers: int) -> list[Alternative]:
    """The overlaps that have communication to hide on a grid: each alone, and all together."""
    hides = (_sums_gradients(grid, layers=layers), grid.z > 1, grid.z > 1)
    names = [name for name, is_hidden in zip(("oar", "ors", "oag"), hides, strict=True) if is_hidden]
    each = [frozenset({cast(OverlapName, name)}) for name in names]
    return [*each, frozenset().union(*each)] if len(each) > 1 else each


def _sums_gradients(grid: Grid, *, layers: int) -> bool:
    """Whether gradients of inputs are summed over ranks.

    A matmul sums them over x, the layers of a network alternately over x and y; the first layer needs none.
    """
    return grid.x > 1 if layers == 1 else grid.y > 1 or (layers > 2 and grid.x > 1)


def _sums_products(grid: Grid, *, layers: int) -> bool:
    """Whether matrix products are summed over ranks."""
    return grid.x > 1 or (layers > 1 and grid.y > 1)


def draw(seed: int, cases: int, site: TrialSite | None = None) -> list[Trial]:
    """Random trials, the same for the same seed: other topologies, rates, sizes, grids and dtypes than in the matrix.

    Parameters
    ----------
    seed : seed of the random numbers
    cases : number of trials
    site : site of all trials; None: sites are drawn too

    >>> draw(3, 5) == draw(3, 5), len(draw(3, 5)), draw(3, 5) == draw(4, 5)
    (True, 5, False)
    """
    random, cutting = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    sites = [site] if site is not None else [_draw_site(random) for _ in range(-(-cases // CASES_PER_SITE))]
    drawn = [
        (drawn_site, _draw_experiment(random, drawn_site.ranks))
        for drawn_site in (sites[number % len(sites)] for number in range(cases))
    ]
    return [Trial(site, _with_drawn_bands(cutting, experiment)) for site, experiment in drawn]


def _draw_site(random: np.random.Generator) -> TrialSite:
    """A random laboratory: topology, number of hosts and rate."""
    rate = f"{int(random.integers(60, 400))}mbit"
    kind, hosts = random.choice(["star", "dumbbell", "leaf-spine"]), int(random.choice([3, 4, 6, 8]))
    if kind != "leaf-spine":
        return TrialSite(f"{kind}:hosts={hosts}", rate, hosts)
    under = max(2, hosts // 2)
    spines = int(random.integers(1, under + 1))
    return TrialSite(f"leaf-spine:leaves=2,spines={spines},hosts_per_leaf={under}", rate, 2 * under)


def _draw_experiment(random: np.random.Generator, ranks: int) -> Experiment:
    """A random matmul or training step on a number of ranks."""
    choices = LIBRARY if random.random() < LIBRARY_SHARE else Choices()
    if random.random() < STEP_SHARE:
        return _draw_training_step(random, ranks, choices)
    names = [name for name in get_args(AlgorithmName) if grids(ranks, find_algorithm(name))]
    algorithm = cast(AlgorithmName, str(random.choice(names)))
    passes = cast(Passes, str(random.choice(["forward", "training"])))
    fitting = grids(ranks, find_algorithm(algorithm))
    grid = fitting[int(random.integers(len(fitting)))]
    m, k, n = (_draw_size(random) for _ in "mkn")
    dtype = cast(DType, str(random.choice(["float32", "float64"])))
    problem = Matmul(m, k, n, dtype, passes)
    experiment = MatmulExperiment(problem, grid, algorithm, ExecutionOptions(choices=choices))
    return (
        _with_drawn_overlap(random, experiment, layers=1) if algorithm == "4d" and passes == "training" else experiment
    )


def _draw_training_step(random: np.random.Generator, ranks: int, choices: Choices) -> Experiment:
    """A random training step of two or three layers."""
    fitting = grids(ranks, find_algorithm("4d"))
    layers = int(random.integers(2, 4))
    widths = tuple(_draw_size(random) for _ in range(layers + 1))
    grid = fitting[int(random.integers(len(fitting)))]
    experiment = TrainingExperiment(mlp(widths, _draw_size(random)), grid, execution=ExecutionOptions(choices=choices))
    return _with_drawn_overlap(random, experiment, layers=layers)


def _with_drawn_bands(random: np.random.Generator, experiment: Experiment) -> Experiment:
    """The experiment in a drawn number of bands, if it is a training step with Quadrille's own collectives."""
    bands = int(random.choice(["1", "1", "2", "4"]))
    own = experiment.execution.choices.implementation == "own"
    cut = isinstance(experiment, TrainingExperiment) and own and _sums_products(experiment.grid, layers=2)
    return _with_options(experiment, bands=bands) if cut else experiment


def _with_drawn_overlap(random: np.random.Generator, experiment: Experiment, *, layers: int) -> Experiment:
    """The experiment with drawn overlaps that have communication to hide; none for the library's collectives."""
    alternatives = [NONE, *_overlaps(experiment.grid, layers=layers)]
    words = [",".join(name for name in OVERLAPS if name in overlaps) or NO_OVERLAP for overlaps in alternatives]
    chosen = alternatives[words.index(str(random.choice(words)))]
    return experiment if experiment.execution.choices == LIBRARY else _with_options(experiment, overlaps=chosen)


def _draw_size(random: np.random.Generator) -> int:
    """A random size of a dimension, log-uniform."""
    return int(SMALLEST_SIZE * (LARGEST_SIZE / SMALLEST_SIZE) ** random.random())
