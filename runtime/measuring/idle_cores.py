"""The time for which a core stays idle before the kernel moves a rank to it from a core with two ranks.

One rank more than cores multiplies at once. The first rank that is alone on its core ends after t, the time of a
product
without oversubscription. After a further time c, its core takes one of the two ranks that share a core. Each of them
then has half of its work less c / 2 left, so the last rank ends at 3 t / 2 + c / 2.
"""

from statistics import median

from mpi4py import MPI

from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.measuring.microbenchmarks import Bench, measured_on_first
from quadrille.runtime.measuring.overlap_interference import OverlapBenchmark
from quadrille.runtime.measuring.sizes import FULL, CalibrationSizes

PRODUCTS = 1, 2, 3, 1, 2, 3
"""Products in a row without a wait: 15 to 100 ms. In longer series the kernel moves ranks by itself."""


def measure_idle_cores(
    communicator: MPI.Intracomm, cores: int, message_options: MessageOptions, sizes: CalibrationSizes = FULL
) -> float:
    """The idle time [s]; 0 if there are no more ranks than cores, or one core. A collective call.

    Parameters
    ----------
    message_options : how ranks wait for each other
    """
    if not 1 < cores < communicator.Get_size():
        return 0.0

    def seconds(bench: Bench) -> list[float]:
        products = OverlapBenchmark(bench.communicator, message_options, sizes)
        return [products.products_seconds(count) for count in PRODUCTS]

    alone, oversubscribed = (measured_on_first(communicator, ranks, seconds) for ranks in (cores, cores + 1))
    return max(0.0, median(2 * last - 3 * first for first, last in zip(alone, oversubscribed, strict=True)))
