"""`quadrille study runtime-speed`, which is `make bench-runtime`: our product beside those of its peers, in one run.

Question: ranks of one host start and end with one evenly spread copy of A, B
and C.  How long does our product take beside what else one would use, on the
same BLAS and threads, turn by turn?
"""

import json as json_text
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from math import exp, log
from pathlib import Path
from statistics import median, quantiles

import msgspec

from quadrille.algorithms.matmuls.matmul import parse_sizes
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.tensors import DType
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import Row, milliseconds, percent, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.studies.benchmarks.ratios import Ratio, ratio_of_pairs
from quadrille.studies.runtime_speed.pairs import OURS, PAIRS
from quadrille.studies.runtime_speed.peers import PEERS, SCALAPACK, missing, versions

SCHEMA = "quadrille/runtime-speed/1"
RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = ("2048,2048,2048", "4096,4096,4096", "4096,1024,4096", "8192,4096,1024")
DTYPES: tuple[DType, ...] = ("float64", "float32")
RANKS, TURNS = 2, 20
HIGHEST_END, HIGHEST_MEAN = 1.05, 1.00
"""Of the interval of the ratio to the best peer, on every product, and of the mean of these ratios."""


class BesideOurs(msgspec.Struct, frozen=True, kw_only=True):
    """One entrant's turns of one product, and ours over its, pair by pair, with the 95 % interval of the median."""

    name: str
    seconds: tuple[float, ...]
    ratio: Ratio


class TimedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """One product: ours, and everyone else's."""

    m: int
    k: int
    n: int
    dtype: str
    seconds: tuple[float, ...]
    peers: tuple[BesideOurs, ...]

    @property
    def best(self) -> BesideOurs:
        return min(self.peers, key=lambda peer: median(peer.seconds))


class ProductSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The study's answer, as it is written."""

    ranks: int
    products: tuple[TimedProduct, ...]
    left_out: dict[str, str]
    mean_ratio_to_best: float
    provenance: Provenance


def main() -> None:
    """Ask as usual, and keep the answer."""
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
    shapes : M,K,N
    turns : number of rounds; every entrant runs once in each
    json : file of the answer; `-` is stdout, and then no table is printed
    """
    Destinations(json=json).check()
    asked = [(*parse_sizes(shape), dtype) for shape in shapes for dtype in dtypes]
    left_out = {name: why for name in PEERS if (why := missing(name, ranks))}
    names = [name for name in PEERS if name not in left_out]
    products = tuple(_products(asked, _measured(asked, ranks, turns, names)))
    answer = ProductSpeed(
        ranks=ranks,
        products=products,
        left_out=left_out,
        mean_ratio_to_best=exp(sum(log(product.best.ratio.median) for product in products) / len(products)),
        provenance=provenance(list(command), **versions(names)),
    )
    write_or_show(answer, json, SCHEMA, lambda: show(answer))
    return answer


Asked = tuple[int, int, int, DType]


def _measured(asked: Sequence[Asked], ranks: int, turns: int, names: Sequence[str]) -> list[dict[str, list[float]]]:
    """Seconds of every round of every entrant, for each product."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, answer = Path(folder) / "asked.json", Path(folder) / "found.json"
        wanted.write_text(json_text.dumps({"products": asked, "pairs": turns, "peers": names}))
        launch_or_raise(f"{len(asked)} products", ranks, [str(wanted), str(answer)], program=PAIRS)
        return [dict(seconds) for seconds in json_text.loads(answer.read_text())]


def _products(asked: Sequence[Asked], measured: Sequence[dict[str, list[float]]]) -> list[TimedProduct]:
    return [
        TimedProduct(
            m=m,
            k=k,
            n=n,
            dtype=dtype,
            seconds=tuple(seconds[OURS]),
            peers=tuple(
                BesideOurs(name=name, seconds=tuple(theirs), ratio=ratio_of_pairs(seconds[OURS], theirs))
                for name, theirs in seconds.items()
                if name != OURS
            ),
        )
        for (m, k, n, dtype), seconds in zip(asked, measured, strict=True)
    ]


def show(answer: ProductSpeed) -> None:
    """Prints medians, spreads and ratios, and what is to be reached."""
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
    yield f"{product.m}x{product.k}x{product.n} {product.dtype}", "", "", "", ""
    yield f"  {OURS}", *_times(product.seconds), "", ""
    for peer in product.peers:
        best = " (best peer)" if peer is product.best else ""
        interval = f"{peer.ratio.low:.3f} to {peer.ratio.high:.3f}"
        yield f"  {peer.name}{best}", *_times(peer.seconds), f"{peer.ratio.median:.3f}", interval


def _times(seconds: Sequence[float]) -> tuple[str, str]:
    """The median and half of what lies between the quartiles, in percent of it."""
    low, middle, high = quantiles(seconds, n=4)
    return milliseconds(middle), percent((high - low) / 2 / middle, signed=False)


if __name__ == "__main__":
    run_as_program(main)
