"""Comparing the tables of measured kernels with the kernels that other projects measured."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.studies.kernel_tables.compare_sources import attention_ratio, main, product_seconds, simumax_samples
from quadrille.topologies.nodes.attention_kernels import SECOND
from quadrille.topologies.nodes.kernel_tables import kernel_table

SIZES = {"batch": 2, "seq_len": 1024, "head_num": 8, "kv_head_num": 8, "qk_head_dim": 128, "v_head_dim": 128}
B200 = kernel_table("b200-sxm")
TERA = 1e12


def samples(tmp_path, op, shape, rate):
    path = tmp_path / "kernels.csv"
    path.write_text(
        f"gpu_kind,op,shape,efficiency,nominal_tflops\nB200 SXM,{op},{shape},0.5,{2 * rate / TERA}\n".replace(";", " ")
    )
    return list(simumax_samples(path))


def test_a_product_at_the_rate_of_the_table_has_a_ratio_of_one(tmp_path):
    m, k, n = 4096, 2048, 1024
    rate = 2 * m * k * n / product_seconds(B200, m, k, n)
    ((source, kernel, ratio),) = samples(tmp_path, "matmul", f"m={m};k={k};n={n};layout=TN", rate)
    assert (source, kernel) == ("SimuMax, B200 SXM", "product TN")
    assert ratio == pytest.approx(1)


@pytest.mark.parametrize(("k", "n"), [(4096, 3072), (1536, 4096)])
def test_grouped_products_at_the_rate_of_the_table_have_a_ratio_of_one(tmp_path, k, n):
    peak, bandwidth = B200.peak_flops_per_second["bfloat16"], B200.memory_bytes_per_second
    seconds, _ = B200.grouped_seconds({256: 8}, (4096, 1536), (k, n), peak, bandwidth)
    shape = f"ng=8;M=256;N={n};K={k};stage=bwd_grad_w"
    ((_, kernel, ratio),) = samples(tmp_path, "group_matmul", shape, 2 * 8 * 256 * k * n / seconds)
    assert (kernel, ratio) == ("experts bwd_grad_w", pytest.approx(1))


def test_short_products_are_left_out(tmp_path):
    assert not samples(tmp_path, "matmul", "m=64;k=64;n=64;layout=TN", TERA)


def test_the_rate_of_attention_counts_full_squares_of_two_or_five_products(tmp_path):
    forward, backward = (attention_ratio(B200, SIZES, TERA, backward=is_backward) for is_backward in (False, True))
    assert backward / forward == pytest.approx(5 / 2 / SECOND.backward)
    shape = ";".join(f"{name}={size}" for name, size in SIZES.items())
    ((_, kernel, ratio),) = samples(tmp_path, "sdp_bwd", shape, TERA)
    assert (kernel, ratio) == ("sdp_bwd", pytest.approx(backward))


def test_a_missing_file_is_refused():
    with pytest.raises(InputError, match=r"a CSV file of SimuMax's kernels is accepted"):
        main("none.csv")
