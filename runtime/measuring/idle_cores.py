"""How long a core that hosts share is idle before it takes a rank from a core with two.

One rank more than cores multiplies at once.  The first of those alone on their cores ends after t, as long as
products take with no more ranks than cores; after a further c its core takes one of the two that share one, each
of which has half its work less half of c before it, so that the last ends at 3 t / 2 + c / 2.
"""

from statistics import median

from mpi4py import MPI

from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.measuring.microbenchmarks import Bench, measured_on_first
from quadrille.runtime.measuring.overlap_interference import OverlapBenchmark

PRODUCTS = 1, 2, 3, 1, 2, 3
"""One after the other without a wait: 15 to 100 ms.  In those that are longer the kernel moves ranks about."""


def measure_idle_cores(communicator: MPI.Intracomm, cores: int, message_options: MessageOptions) -> float:
    """Seconds; 0 where ranks are no more than cores, or there is one.  All ranks call it and get the same.

    Parameters
    ----------
    message_options : how ranks wait for each other
    """
    if not 1 < cores < communicator.Get_size():
        return 0.0

    def seconds(bench: Bench) -> list[float]:
        products = OverlapBenchmark(bench.communicator, message_options)
        return [products.products_seconds(count) for count in PRODUCTS]

    alone, crowded = (measured_on_first(communicator, ranks, seconds) for ranks in (cores, cores + 1))
    return max(0.0, median(2 * last - 3 * first for first, last in zip(alone, crowded, strict=True)))
