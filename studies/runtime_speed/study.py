"""`quadrille study runtime-speed` (`make bench-runtime`): the time of Quadrille's matmul against other libraries.

The ranks of one host start and end with evenly distributed matrices A, B and C.  Quadrille and its peers multiply
alternately, with the same threads; the ratio of their times is computed pair by pair.
"""

import json as json_text
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from math import exp, log
from pathlib import Path
from statistics import median, quantiles

import msgspec

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.matmuls.matmul import parse_sizes
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.tensors import DType
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import Row, duration, percent, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.studies.benchmarks.paired_ratios import Ratio, ratio_of_pairs
from quadrille.studies.runtime_speed.alternating_matmuls import OURS, PROGRAM
from quadrille.studies.runtime_speed.peer_products import PEERS, SCALAPACK, missing_reason, versions

SCHEMA = "quadrille/runtime-speed/1"
RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = ("2048,2048,2048", "4096,4096,4096", "4096,1024,4096", "8192,4096,1024")
DTYPES: tuple[DType, ...] = ("float64", "float32")
RANKS, TURNS = 2, 20
HIGHEST_END, HIGHEST_MEAN = 1.05, 1.00
"""Thresholds: the upper end of the interval of the ratio to the best peer, and the mean of these ratios."""


class PeerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a peer.

    Parameters
    ----------
    name : name of the peer
    seconds : time of each round [s]
    ratio : median of Quadrille's time / the peer's over the rounds, with its 95 % interval
    """

    name: str
    seconds: tuple[float, ...]
    ratio: Ratio


class TimedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one matmul.

    Parameters
    ----------
    m, k, n, dtype : sizes and dtype
    seconds : time of each of Quadrille's rounds [s]
    peers : times of the peers
    """

    m: int
    k: int
    n: int
    dtype: str
    seconds: tuple[float, ...]
    peers: tuple[PeerTimes, ...]

    @property
    def best(self) -> PeerTimes:
        """The peer with the shortest median time."""
        return min(self.peers, key=lambda peer: median(peer.seconds))


class ProductSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the study, as `--json` writes it.

    Parameters
    ----------
    ranks : number of ranks
    products : times of each matmul
    left_out : reason why a peer did not run, by its name
    mean_ratio_to_best : geometric mean of the ratios to the best peer
    provenance : command, date and versions
    """

    ranks: int
    products: tuple[TimedProduct, ...]
    left_out: dict[str, str]
    mean_ratio_to_best: float
    provenance: Provenance


def main() -> None:
    """Run the study with the default matmuls, and write the answer to `results/`."""
    RESULTS.mkdir(exist_ok=True)
    runtime_speed(json=str(RESULTS / f"{date.today()}.json"), command=["quadrille", "study", "runtime-speed"])


def runtime_speed(
    *,
    ranks: int = RANKS,
    shapes: Sequence[str] = SHAPES,
    dtypes: Sequence[DType] = DTYPES,
    turns: int = TURNS,
    json: str = "",
    command: Sequence[str] = (),
) -> ProductSpeed:
    """Measure every product in one launch and print the table.

    Parameters
    ----------
    ranks : number of ranks
    shapes : sizes of each matmul as `M,K,N`
    dtypes : dtypes of each matmul
    turns : number of rounds; every library runs once in each round
    json : file of the answer, `-` for stdout (then no table is printed); empty: not written
    command : command line, for the provenance
    """
    Destinations(json=json).check()
    products_to_time = [(*parse_sizes(shape), dtype) for shape in shapes for dtype in dtypes]
    left_out = {name: why for name in PEERS if (why := missing_reason(name, ranks))}
    names = [name for name in PEERS if name not in left_out]
    products = tuple(_timed_products(products_to_time, _measure(products_to_time, ranks, turns, names)))
    answer = ProductSpeed(
        ranks=ranks,
        products=products,
        left_out=left_out,
        mean_ratio_to_best=exp(sum(log(product.best.ratio.median) for product in products) / len(products)),
        provenance=provenance(list(command), **versions(names)),
    )
    write_or_show(answer, json, SCHEMA, lambda: show(answer))
    return answer


Sizes = tuple[int, int, int, DType]


def _measure(products: Sequence[Sizes], ranks: int, turns: int, names: Sequence[str]) -> list[dict[str, list[float]]]:
    """The times of every round by the name of the library [s], for each matmul."""
    with tempfile.TemporaryDirectory() as folder:
        products_path, times_path = Path(folder) / "products.json", Path(folder) / "times.json"
        schema_files.write_text(products_path, json_text.dumps({"products": products, "pairs": turns, "peers": names}))
        launch_or_raise(f"{len(products)} products", ranks, [str(products_path), str(times_path)], program=PROGRAM)
        return [dict(seconds) for seconds in json_text.loads(times_path.read_text())]


def _timed_products(sizes: Sequence[Sizes], measured: Sequence[dict[str, list[float]]]) -> list[TimedProduct]:
    """The times of each matmul, with the ratios to its peers."""
    return [
        TimedProduct(
            m=m,
            k=k,
            n=n,
            dtype=dtype,
            seconds=tuple(seconds[OURS]),
            peers=tuple(
                PeerTimes(name=name, seconds=tuple(theirs), ratio=ratio_of_pairs(seconds[OURS], theirs))
                for name, theirs in seconds.items()
                if name != OURS
            ),
        )
        for (m, k, n, dtype), seconds in zip(sizes, measured, strict=True)
    ]


def show(answer: ProductSpeed) -> None:
    """Print the tables of times and ratios, and of the figures with their thresholds."""
    columns = ["product", "time", "spread", "ours / its", "95 % interval"]
    sections = [list(_rows(product)) for product in answer.products]
    title = f"{answer.ranks} ranks, {len(answer.products[0].seconds)} turns of each, one after the other"
    highest = max(product.best.ratio.high for product in answer.products)
    print_tables(
        table(title, columns, *sections),
        table(
            "Judged",
            ["what", "found", "to be reached"],
            [
                ("highest end of an interval, best peer", f"{highest:.3f}", f"at most {HIGHEST_END}"),
                (
                    "geometric mean of ratios to the best peers",
                    f"{answer.mean_ratio_to_best:.3f}",
                    f"at most {HIGHEST_MEAN}",
                ),
            ],
        ),
    )
    if library := answer.provenance.versions.get(SCALAPACK):
        print(f"{SCALAPACK} is {library}")
    for name, why in answer.left_out.items():
        print(f"left out: {name}, which {why}" if why.startswith("takes") else f"left out: {name}: {why}")


def _rows(product: TimedProduct) -> Iterator[Row]:
    """The rows of one matmul."""
    yield f"{product.m}x{product.k}x{product.n} {product.dtype}", "", "", "", ""
    yield f"  {OURS}", *_times(product.seconds), "", ""
    for peer in product.peers:
        best = " (best peer)" if peer is product.best else ""
        interval = f"{peer.ratio.low:.3f} to {peer.ratio.high:.3f}"
        yield f"  {peer.name}{best}", *_times(peer.seconds), f"{peer.ratio.median:.3f}", interval


def _times(seconds: Sequence[float]) -> tuple[str, str]:
    """The median, and half of the interquartile range in percent of the median."""
    low, middle, high = quantiles(seconds, n=4)
    return duration(middle), percent((high - low) / 2 / middle, signed=False)


if __name__ == "__main__":
    run_as_program(main)
