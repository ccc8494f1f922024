from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.experiments.import_.kineto import read_kineto
from quadrille.experiments.traces.busy_times import Busy
from quadrille.experiments.traces.collective_calls import call_kind, collective_call
from quadrille.experiments.traces.iterations import iterations_of
from quadrille.experiments.traces.kernel_works import kernel_work
from quadrille.experiments.traces.trace_summary import summarise
from tests.support.kineto_traces import BUSY, GEMM, ITERATION, NORM, PERIOD, Work, all_reduce, events, write_trace

US = 1e-6


def summary_of(tmp_path, rows=None):
    return summarise(read_kineto(write_trace(tmp_path / "t.json", rows)))


def test_the_time_of_an_iteration_is_split_as_it_was_written(tmp_path):
    summary = summary_of(tmp_path)
    mean = (2 * PERIOD + BUSY) / 3
    assert (summary.iterations, summary.iterations_from) == (3, "annotations")
    assert summary.seconds == pytest.approx(mean * US)
    assert summary.computing_seconds == pytest.approx(170 * US)
    assert summary.exposed_communication_seconds == pytest.approx(70 * US)
    assert summary.hidden_communication_seconds == pytest.approx(30 * US)
    assert summary.exposed_copy_seconds == pytest.approx(10 * US)
    assert summary.idle_seconds == pytest.approx((mean - BUSY) * US)
    shares = {row.work: (row.share_seconds / US, row.kernel_seconds / US, row.count) for row in summary.works}
    expected = {
        "products": (100, 100, 3), "attention": (50, 50, 3), "other kernels": (20, 20, 3),
        "communication": (70, 100, 3), "copies": (10, 10, 3),
    }  # fmt: skip
    assert {work: pytest.approx(row) for work, row in expected.items()} == shares
    (collective,) = summary.collectives
    assert (collective.kind, collective.bytes, collective.members, collective.count) == ("all_reduce", 2**21, 8, 3)
    assert collective.median_seconds == pytest.approx(100 * US)
    assert collective.exposed_seconds == pytest.approx(70 * US)
    assert collective.algorithm_bandwidth == pytest.approx(2**21 / (100 * US))
    assert collective.bus_bandwidth == pytest.approx(2 * 7 / 8 * 2**21 / (100 * US))
    assert [row.idle_seconds / US for row in summary.by_iteration] == pytest.approx([50, 50, 0])
    assert [(row.name, row.count) for row in summary.streams] == [("0/7", 12), ("0/20", 3)]
    assert summary.outside == 0


def test_the_states_of_an_iteration_add_up_to_its_time(tmp_path):
    rows = [*ITERATION, Work(NORM, 90, 70, stream=9), all_reduce(200, 60, stream=21), Work(GEMM, 5, 500, stream=11)]
    summary = summary_of(tmp_path, events(rows, period=700))
    for row in summary.by_iteration:
        states = (row.computing_seconds, row.exposed_communication_seconds, row.exposed_copy_seconds, row.idle_seconds)
        assert sum(states) == pytest.approx(row.seconds)


def test_without_annotations_the_kernels_that_run_once_are_the_border(tmp_path):
    layers = [Work(GEMM, 10 * place, 8) for place in range(6)]
    iteration = [*layers, Work("adam", 60, 5), Work("loss", 70, 5)]
    iterations = iterations_of(
        read_kineto(write_trace(tmp_path / "t.json", events(iteration, 4, 100, annotated=False)))
    )
    assert iterations.source == "repeated kernels"
    assert np.allclose(np.array(iterations.borders) / US, [60, 160, 260, 360], atol=1e-3)


def test_a_trace_in_which_nothing_repeats_is_one_iteration(tmp_path):
    rows = events([Work(name, 10 * place, 5) for place, name in enumerate("abcb")], 1, annotated=False)
    iterations = iterations_of(read_kineto(write_trace(tmp_path / "t.json", rows)))
    assert (iterations.source, iterations.count) == ("whole trace", 1)
    assert iterations.seconds == pytest.approx((35 * US,))


def test_work_belongs_to_the_iteration_that_launched_it(tmp_path):
    late = iterations_of(read_kineto(write_trace(tmp_path / "t.json", events(lead=250.0))))
    assert late.source == "annotations" and np.allclose(np.array(late.borders[:3]) / US, [0, 300, 600], atol=1e-3)


def test_annotations_without_launches_count_by_the_start_of_work(tmp_path):
    rows = events(launched=False, lead=0.0)
    late = iterations_of(read_kineto(write_trace(tmp_path / "t.json", rows)))
    assert late.count == 3 and np.allclose(np.array(late.borders[:3]) / US, [0, 300, 600], atol=1e-3)


def test_work_before_the_first_iteration_does_not_count(tmp_path):
    rows = events(count=4)
    rows = [row for row in rows if row["name"] != "ProfilerStep#5"]
    summary = summary_of(tmp_path, rows)
    assert summary.iterations == 3 and summary.outside == pytest.approx(0.25)


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12)


@given(first=intervals, second=intervals, borders=st.lists(st.integers(0, 40), min_size=2, max_size=5).map(sorted))
def test_busy_times_are_those_of_a_count_of_unit_cells(first, second, borders):
    def cells(rows):
        return {cell for start, length in rows for cell in range(start, start + length)}

    def busy(rows):
        return Busy.of([float(start) for start, _ in rows], [float(start + length) for start, length in rows])

    union = (busy(first) | busy(second)).within(list(map(float, borders)))
    covered = cells(first) | cells(second)
    expected = [len(covered & set(range(*pair))) for pair in pairwise(borders)]
    assert union.tolist() == expected


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_128x128x128_4x1x1_cga1x1x1", "attention"),
        ("fmha_cutlassB_bf16_aligned_64x64_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)", "attention"),
        ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<...>>", "attention"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "products"),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "products"),
        ("Cijk_Ailk_Bjlk_BBS_BH_MT256x256x32_MI32x32x8x1", "products"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNT", "products"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", "other kernels"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "other kernels"),
        ("triton_poi_fused_add_mul_silu_5", "other kernels"),
    ],
)
def test_kernels_of_libraries_are_known_by_name(name, work):
    assert kernel_work(name) == work


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"), ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"), ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"), ("broadcast", "broadcast"), ("reduce", "reduce"), ("send", "send_receive"),
        ("recv", "send_receive"), ("wait", "unknown"),
    ],
)  # fmt: skip
def test_collectives_are_known_by_the_names_that_pytorch_writes(name, kind):
    assert call_kind(name) == kind


def test_sizes_are_those_of_the_whole_buffer():
    def size(name, sent, received, dtype="BFloat16"):
        return collective_call("nccl", name, sent, received, dtype, 4, "", "").bytes

    assert size("_allgather_base", 10, 40) == size("_allgather_base", 10, None) == 80
    assert size("_reduce_scatter_base", 40, 10) == size("all_to_all", 40, 40) == 80
    assert size("allreduce", "40", 40) == 80
    assert size("allreduce", 40, 40, "Mystery") is size("allreduce", None, 40) is size("allreduce", -1, 1) is None
