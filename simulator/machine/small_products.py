"""`SmallProducts`: seconds of products whose operands have 8 or 4 bits, and of the passes that make operands small.

A product is read from the table of measured kernels that the machine names.  Without a table, or with a table without
the precision, it is the longer of arithmetic and memory traffic (`rooflines.py`), with the peak of the precision and
its share of the peak (`small_rates.py`).

The search for the largest magnitude reads its tensor at `LARGEST_SHARE` of the memory bandwidth, other casts move their
bytes as fast as all passes do.

Source: aiconfigurator-core 0.12.0 (NVIDIA, PyPI), tables of "amax and scale" and "scale and cast" of matrices of 67
million elements and more: amax 0.38 of the bandwidth of H100, from which the share is taken, 0.37 of B200, GB200 and
GB300, 0.28 of H200; cast 0.91 of H100, 0.88 of H200, 0.60 to 0.65 of the others.
"""

from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.algorithms.schedule.ops import SmallPrecision
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.simulator.machine.rooflines import best_product_seconds
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.nodes.kernel_tables import PRODUCT_BYTES, KernelTable, kernel_table
from quadrille.topologies.small_rates import SmallRate, small_rate

LARGEST_SHARE = 0.38
"""Share of the memory bandwidth at which the largest magnitude of a tensor is found."""


class SmallProducts:
    """Seconds of products in small numbers on one device.

    Parameters
    ----------
    machine : machine of the device
    dtype : dtype of the results
    """

    def __init__(self, machine: Machine, dtype: DType) -> None:
        self._machine, self._device, self._result_bytes = machine, machine.device, ITEM_BYTES[dtype]
        self._rates: dict[SmallPrecision, SmallRate] = {}
        name = machine.device.measured_kernels
        self._table: KernelTable | None = kernel_table(name) if name else None

    def rate(self, precision: SmallPrecision) -> SmallRate:
        """The rate of products in a precision.

        Raises
        ------
        InputError : a device that lacks the precision
        """
        if precision not in self._rates:
            self._rates[precision] = small_rate(self._machine, precision)
        return self._rates[precision]

    def seconds(self, sizes: tuple[int, int, int], precision: SmallPrecision) -> tuple[float, bool]:
        """Seconds of a product of m x k by k x n, and whether they are extrapolated.

        Parameters
        ----------
        sizes : m, k and n
        """
        rate, bandwidth, achieved = self.rate(precision), self._device.memory_bytes_per_second, self._device.achieved
        if self._table is not None and rate.table in self._table.products:
            return self._table.product_seconds(sizes, rate.table, rate.peak, bandwidth)
        m, k, n = sizes
        size = PRODUCT_BYTES[rate.table] * (m * k + k * n) + self._result_bytes * m * n
        if achieved is None:
            return max(2.0 * m * k * n / rate.peak, size / bandwidth), True
        arithmetic = best_product_seconds(1, m, k, n, rate.peak * rate.share, achieved)
        return max(arithmetic, size / (bandwidth * achieved.memory_share)), True


def small_pass_seconds(function: Function, touched: int, machine: Machine, rate: float, share: float) -> float | None:
    """Seconds of a pass that makes a tensor small; None for other functions.

    Parameters
    ----------
    touched : bytes read and written [B]
    rate, share : memory bandwidth [B/s], and the share of it that other passes reach
    """
    if function == "largest":
        return touched / (rate * min(share, LARGEST_SHARE))
    if function == "to_columns" and small_rate(machine, "fp8").any_layout:
        return 0.0
    return None
