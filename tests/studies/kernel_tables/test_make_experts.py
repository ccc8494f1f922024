"""Tables of experts: which measurements count, and what is refused."""

import gzip

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.studies.kernel_tables.make_experts import experts_measured, main
from quadrille.topologies.nodes.kernel_tables import experts_bound, kernel_table

HEAD = "dtype,distribution,hidden,inter,topk,experts,tp,ep,tokens,gated,seconds"


def test_a_row_is_that_of_one_rank_and_other_precisions_and_skewed_or_small_experts_are_left_out(tmp_path):
    rows = [
        "bfloat16,balanced,4096,2048,2,16,2,4,4096,1,0.001",
        "bfloat16,power_law_1.2,4096,2048,2,16,2,4,4096,1,0.001",
        "fp8,balanced,4096,2048,2,16,2,4,4096,1,0.001",
        "bfloat16,balanced,4096,2048,2,16,2,4,16,1,0.001",
    ]
    path = tmp_path / "moe.csv.gz"
    path.write_bytes(gzip.compress("\n".join([HEAD, *rows]).encode()))
    kernels = kernel_table("b200-sxm")
    measured = experts_measured(path, kernels)
    assert measured.sizes.tolist() == [[512, 4, 4096, 1024]]
    rates = kernels.peak_flops_per_second["bfloat16"], kernels.memory_bytes_per_second
    bound = experts_bound(2048, 4, 4096, 1024, *rates, gated=True)
    assert np.exp(measured.logarithms) == pytest.approx(0.001 / bound)


def test_a_folder_without_measurements_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"moe_h100_sxm.csv.gz is missing"):
        main(str(tmp_path))
