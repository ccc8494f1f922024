"""The steps of a session on a GPU: the processes that `session.py` runs one after the other, each with a time limit.

A step is either one test function of `tests/runtime/test_gpu.py` or one benchmark of `session_parts.py`.  The steps
that tell most per second come first: correctness of arrays and products, then the executor against a bare product, the
calibration, ranks that share the GPU, and last the longest tests.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

TESTS = "tests/runtime/test_gpu.py"
PYTEST = (
    "-m", "pytest", "-v", "--tb=short", "--no-header", "--durations=0", "--color=no", "-p", "no:cacheprovider",
    "-o", "filterwarnings=default",
)  # fmt: skip
"""Command-line options of pytest; a warning fails no test, because the machine's libraries are not the locked ones."""


@dataclass(frozen=True, slots=True)
class SessionStep:
    """One process of the session: a GPU test or a benchmark.

    Parameters
    ----------
    name : name of a benchmark in `session_parts.PARTS`, or of a test function in `tests/runtime/test_gpu.py`
    limit_seconds : time limit [s]; the session kills the process after it
    least_seconds : remaining session time below which the step is left out [s]
    """

    name: str
    limit_seconds: float
    least_seconds: float = 10.0

    @property
    def is_test(self) -> bool:
        """Whether the step is a test function; otherwise it is a benchmark."""
        return self.name.startswith("test_")

    def command_line(self, folder: str, options: Sequence[str] = ()) -> list[str]:
        """The command line of the step's process.

        Parameters
        ----------
        folder : folder of the results, for a benchmark
        options : further command-line options of a benchmark

        >>> SessionStep("streams", 60).command_line("results", ["--tiny"])[1:]
        ['-P', '-m', 'quadrille.studies.gpu.session_parts', 'streams', 'results', '--tiny']
        """
        if self.is_test:
            return [sys.executable, "-P", *PYTEST, f"{TESTS}::{self.name}"]
        return [sys.executable, "-P", "-m", "quadrille.studies.gpu.session_parts", self.name, folder, *options]


STEPS = (
    SessionStep("device", 60),
    SessionStep("test_products_are_numpy_s_within_the_rounding_of_the_dtype", 60),
    SessionStep("test_windows_sums_copies_and_zeros_are_right", 40),
    SessionStep("test_put_and_fetch_give_the_values_back_in_many_chunks", 40),
    SessionStep("executor", 60, 15),
    SessionStep("test_four_ranks_share_one_gpu_through_staging", 60),
    SessionStep("streams", 45),
    SessionStep("products", 90, 20),
    SessionStep("staged", 90, 20),
    SessionStep("ranks", 90, 30),
    SessionStep("test_sums_of_a_thousand_ones_stay_exact_in_float32_accumulation", 30),
    SessionStep("test_float32_products_are_not_made_in_tf32", 30),
    SessionStep("test_tf32_rounds_what_float32_keeps_where_the_gpu_has_it", 30),
    SessionStep("test_a_marker_comes_after_the_work_and_the_second_stream_does_not_wait", 30),
    SessionStep("test_staged_buffers_carry_the_values_and_are_reused", 30),
    SessionStep("test_the_device_is_described_and_unshared_by_one_rank", 30),
    SessionStep("test_awareness_has_an_answer_and_a_reason", 40),
    SessionStep("test_nccl_of_one_rank_gives_back_what_it_was_given", 40),
    SessionStep("kernels", 90, 20),
    SessionStep("test_four_ranks_train_on_one_gpu_on_many_grids_and_go_on_from_a_checkpoint", 100, 20),
    SessionStep("test_training_of_every_kind_agrees_with_the_serial_run", 100, 20),
    SessionStep("test_one_rank_trains_in_every_dtype_and_its_losses_are_those_of_the_host", 100, 20),
    SessionStep("test_a_checkpoint_of_the_device_goes_on_on_the_host_and_the_other_way", 60),
    SessionStep("test_nccl_carries_where_every_rank_has_a_gpu_and_refuses_where_not", 60),
    SessionStep("test_a_whole_run_of_one_rank_reaches_95_percent_of_a_bare_product", 60),
)
