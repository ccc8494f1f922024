"""What is predicted and measured: multiplications and training steps at sites, by plan or drawn by a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from quadrille.algorithms.matmuls.catalogue import AlgorithmName, find_algorithm
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.experiments.measure.batch import Case
from quadrille.experiments.words.matmul import MatmulWords
from quadrille.experiments.words.runs import RunWords
from quadrille.experiments.words.training import TrainingWords
from quadrille.experiments.workloads.grids import grids
from quadrille.studies.fidelity.sites import TrialSite, has_gpu

OVERLAPS = ("oar", "ors", "oag")
NO_OVERLAP, WHOLE_MESSAGES = "none", "1"
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
BANDS = "4"
PRODUCT = {2: "2048,2048,2048", 4: "1536,1536,1536"}
STEP = TrainingWords(mlp="1024,4096,1024", batch="1024")
GPU_PRODUCT = "8192,8192,8192"
GPU_STEP = TrainingWords(mlp="4096,16384,4096", batch="8192")
DRAWN_SITES = 12
"""Cases for each site that is drawn: a site has to be calibrated."""
LEAST, MOST = 384, 2560
"""Sizes of dimensions that are drawn."""
LIBRARY_SHARE, STEP_SHARE = 0.25, 0.3


@dataclass(frozen=True, slots=True)
class Trial:
    """One multiplication or training step at one site."""

    site: TrialSite
    flags: MatmulWords

    def command(self, run_flags: RunWords) -> str:
        """What measures it, as often as these flags say."""
        return " ".join(["quadrille", *self.site.words, "run", *Case(self.flags, "", run_flags).words()])

    @property
    def words(self) -> list[str]:
        """Of its command line, however often it runs."""
        return Case(self.flags, "", self.site.run_flags).words()

    @property
    def overlap(self) -> str:
        """What runs beside products, in words.

        >>> Trial(SITES[0], TrainingWords(overlap="oar", bands="4")).overlap
        'oar in 4 bands'
        """
        return self.flags.overlap + (f" in {self.flags.bands} bands" if self.flags.bands != WHOLE_MESSAGES else "")

    @property
    def library(self) -> bool:
        return self.flags.collectives == "library"


def matrix(sites: Sequence[TrialSite] | None = None) -> list[Trial]:
    """Every algorithm, forward and training, each overlap alone and all, in bands, our collectives and the library's.

    >>> trials = matrix()
    >>> len({(trial.site, *trial.words) for trial in trials}) == len(trials)
    True

    Parameters
    ----------
    sites : where; by default all, the GPU if there is one
    """
    if sites is None:
        sites = (*SITES, *(GPU_SITES if has_gpu() else ()))
    return [Trial(site, flags) for site in sites for flags in (*_products(site), *_steps(site))]


def _products(site: TrialSite) -> Iterator[MatmulWords]:
    size = GPU_PRODUCT if site.gpu else PRODUCT[site.ranks]
    for name in get_args(AlgorithmName):
        for grid in _chosen(name, site.ranks):
            for passes in ("forward", "training"):
                usual = MatmulWords(matmul=size, algorithm=name, grid=str(grid), passes=passes)
                own = (
                    [NO_OVERLAP, *_overlaps(grid, layers=1)] if name == "4d" and passes == "training" else [NO_OVERLAP]
                )
                yield from (replace(usual, overlap=words) for words in own)
                yield replace(usual, collectives="library")


def _steps(site: TrialSite) -> Iterator[MatmulWords]:
    for grid in _chosen("4d", site.ranks):
        usual, overlaps = replace(GPU_STEP if site.gpu else STEP, grid=str(grid)), _overlaps(grid, layers=2)
        yield from (replace(usual, overlap=words) for words in [NO_OVERLAP, *overlaps])
        if _sums(grid, layers=2):
            yield replace(usual, overlap=[NO_OVERLAP, *overlaps][-1], bands=BANDS)
        yield replace(usual, collectives="library")


def _chosen(algorithm: str, ranks: int) -> list[Grid]:
    """The grid of an algorithm whose longest axis is shortest; of 4d all that cut the product on two axes, or one."""
    fitting = grids(ranks, find_algorithm(algorithm))
    longest = [max(grid.length(axis) for axis in grid.order) for grid in fitting]
    best = [grid for grid, length in zip(fitting, longest, strict=True) if length == min(longest)]
    return [grid for grid in best if grid.data == 1] if algorithm == "4d" else best[:1]


def _overlaps(grid: Grid, *, layers: int) -> list[str]:
    """The overlaps that have something to hide on this grid, each alone, and all of them."""
    there = (_sums_gradients(grid, layers=layers), grid.z > 1, grid.z > 1)
    found = [word for word, one in zip(OVERLAPS, there, strict=True) if one]
    return [*found, ",".join(found)] if len(found) > 1 else found


def _sums_gradients(grid: Grid, *, layers: int) -> bool:
    """Whether gradients of inputs are summed over ranks: of a product over x, of layers over x and y in turn.

    The first layer needs none.
    """
    return grid.x > 1 if layers == 1 else grid.y > 1 or (layers > 2 and grid.x > 1)


def _sums(grid: Grid, *, layers: int) -> bool:
    """Whether products are summed over ranks."""
    return grid.x > 1 or (layers > 1 and grid.y > 1)


def draw(seed: int, cases: int, site: TrialSite | None = None) -> list[Trial]:
    """Trials outside the matrix, the same for the same seed: other topologies, rates, sizes, grids and dtypes.

    Parameters
    ----------
    site : where all of them run; by default sites are drawn, too

    >>> draw(3, 5) == draw(3, 5), len(draw(3, 5)), draw(3, 5) == draw(4, 5)
    (True, 5, False)
    """
    random, cutting = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    sites = [site] if site is not None else [_drawn_site(random) for _ in range(-(-cases // DRAWN_SITES))]
    drawn = [(one, _drawn(random, one.ranks)) for one in (sites[number % len(sites)] for number in range(cases))]
    return [Trial(site, _in_drawn_bands(cutting, flags)) for site, flags in drawn]


def _drawn_site(random: np.random.Generator) -> TrialSite:
    rate = f"{int(random.integers(60, 400))}mbit"
    kind, hosts = random.choice(["star", "dumbbell", "leaf-spine"]), int(random.choice([3, 4, 6, 8]))
    if kind != "leaf-spine":
        return TrialSite(f"{kind}:hosts={hosts}", rate, hosts)
    under = max(2, hosts // 2)
    spines = int(random.integers(1, under + 1))
    return TrialSite(f"leaf-spine:leaves=2,spines={spines},hosts_per_leaf={under}", rate, 2 * under)


def _drawn(random: np.random.Generator, ranks: int) -> MatmulWords:
    collectives = "library" if random.random() < LIBRARY_SHARE else "own"
    if random.random() < STEP_SHARE:
        return _drawn_step(random, ranks, collectives)
    names = [name for name in get_args(AlgorithmName) if grids(ranks, find_algorithm(name))]
    algorithm, passes = str(random.choice(names)), str(random.choice(["forward", "training"]))
    fitting = grids(ranks, find_algorithm(algorithm))
    grid = fitting[int(random.integers(len(fitting)))]
    given = MatmulWords(
        matmul=",".join(str(_size(random)) for _ in "mkn"),
        algorithm=algorithm,
        grid=str(grid),
        dtype=str(random.choice(["float32", "float64"])),
        passes=passes,
        collectives=collectives,
    )
    return _with_overlap(random, given, layers=1) if algorithm == "4d" and passes == "training" else given


def _drawn_step(random: np.random.Generator, ranks: int, collectives: str) -> MatmulWords:
    fitting = grids(ranks, find_algorithm("4d"))
    layers = int(random.integers(2, 4))
    widths = ",".join(str(_size(random)) for _ in range(layers + 1))
    grid = str(fitting[int(random.integers(len(fitting)))])
    given = TrainingWords(mlp=widths, batch=str(_size(random)), grid=grid, collectives=collectives)
    return _with_overlap(random, given, layers=layers)


def _in_drawn_bands(random: np.random.Generator, given: MatmulWords) -> MatmulWords:
    """Some training steps by our collectives in bands."""
    bands = str(random.choice([WHOLE_MESSAGES, WHOLE_MESSAGES, "2", "4"]))
    cut = isinstance(given, TrainingWords) and given.collectives == "own" and _sums(parse_grid(given.grid), layers=2)
    return replace(given, bands=bands) if cut else given


def _with_overlap(random: np.random.Generator, given: MatmulWords, *, layers: int) -> MatmulWords:
    """With none or one of the overlaps that have something to hide; the library's collectives without."""
    found = [NO_OVERLAP, *_overlaps(parse_grid(given.grid), layers=layers)]
    chosen = str(random.choice(found))
    return given if given.collectives == "library" else replace(given, overlap=chosen)


def _size(random: np.random.Generator) -> int:
    return int(LEAST * (MOST / LEAST) ** random.random())
