"""Training steps on device arrays, which only the device reads: staged through MPI's host buffers, and over NCCL."""

import json
import pickle
from functools import partial

import numpy as np
import pytest

from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.measure.batch import RunCase
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.arrays.cupy_library import CupyLibrary
from quadrille.runtime.kernels import layer_kernels
from quadrille.runtime.kernels.layer_kernels import KernelArguments, carry_out
from quadrille.runtime.launching.launch import launch
from tests.support import fake_device
from tests.support.device_trainings import CASES, MEGATRON, ONE
from tests.support.fake_device import FAKE
from tests.support.nccl_in_process import NcclInProcess
from tests.support.quadrille import called
from tests.support.staged_device import StagedInProcess
from tests.support.training_jobs import ended, losses, verdict


@pytest.fixture
def library(monkeypatch):
    fake_device.install(monkeypatch)
    return CupyLibrary(FAKE)


@pytest.fixture
def staged(library):
    """Makes a carrier whose messages go through pinned buffers."""
    return lambda size: StagedInProcess(size, library)


@pytest.mark.parametrize("case", CASES)
def test_training_on_a_device_agrees_with_the_serial_run(library, staged, case):
    found = verdict(ended(library=library, carrier=staged, steps="2", **CASES[case]))
    assert found.ok, found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("collectives", ["own", "library"])
def test_nccl_carries_the_sums_and_maxima_of_training(library, dtype, collectives):
    over_nccl = partial(NcclInProcess, library=library)
    flags = {"dtype": dtype, "collectives": collectives, "steps": "2"} | MEGATRON
    found = verdict(ended(library=library, carrier=over_nccl, **flags))
    assert found.ok, found


def test_a_run_that_lacks_a_sum_on_the_device_is_found(library, staged, monkeypatch):
    monkeypatch.setitem(layer_kernels.KERNELS, "column_sums", lambda given: given.into[0].fill(0))
    found = verdict(ended(library=library, carrier=staged, steps="2", **CASES["zero 3"]))
    assert not found.ok and " b" in found.reason


def test_a_checkpoint_of_a_device_goes_on_on_a_host_and_the_other_way(library, staged, tmp_path):
    """Three steps on one grid are two on a device, saved, and one on another grid of a host."""
    path = tmp_path / "gpt.ckpt"
    flags = {"gpt": ONE, "batch": "4", "dtype": "float64"}
    on_device, on_host = {"library": library, "carrier": staged}, {}
    alone = losses(ended(steps="3", grid="x=1", **flags))
    for saving, loading in ((on_device, on_host), (on_host, on_device)):
        ended(save=path, steps="2", grid="z=2,x=3", **flags, **saving)
        after = ended(load=path, steps="1", grid="data=2,y=2", **flags, **loading)
        assert losses(after) == pytest.approx(alone[2:], rel=1e-9)
        assert verdict(after).ok


@pytest.mark.parametrize(
    "problem", [("--gpt", ONE, "--batch", "4"), ("--mlp", "13,7,11", "--batch", "17")], ids=["gpt", "mlp"]
)
def test_the_command_trains_on_a_device(library, capsys, problem):
    library.cupy.memory = (10**9, 10**9)
    once = ("--steps", "2", "--repeats", "1", "--warmups", "0", "--verify", "--json", "-")
    ran = called(capsys, "run", *problem, "--backend", "cupy", "--dtype", "bfloat16", *once)
    assert ran.status == 0, ran.err
    record = json.loads(ran.out)
    assert record["verified"]["ok"] and record["backend"] == "cupy"
    on_host = json.loads(called(capsys, "run", *problem, "--dtype", "float64", *once).out)
    assert record["losses"] == pytest.approx(on_host["losses"], rel=0.1)


RANKS = """
import sys
from tests.support import fake_device
cupy = fake_device.Cupy()
cupy.memory = (10**9, 10**9)
sys.modules |= {"cupy": cupy, "cupy.cuda": cupy.cuda, "cupy.cuda.nccl": cupy.cuda.nccl}
from quadrille.experiments.measure.batch import main
main(sys.argv[1])
"""


@pytest.mark.mpi
def test_real_ranks_train_on_a_device_and_go_on_on_another_grid(tmp_path):
    saved = str(tmp_path / "gpt.ckpt")
    run_flags = partial(RunOptions, backend="cupy", carrier="mpi", verify=True, repeats=1, warmups=0)
    first = TrainingFlags(**{"steps": "2", "dtype": "float64"} | MEGATRON)
    then = TrainingFlags(gpt=ONE, batch="4", steps="1", grid="z=3", dtype="float64", overlap="ors,oag")
    layers = TrainingFlags(**CASES["layers in 16 bits"] | {"grid": "z=3", "steps": "2"})
    cases = [
        RunCase(parse_training(first), str(tmp_path / "first.json"), run_flags(save=saved)),
        RunCase(parse_training(layers), str(tmp_path / "layers.json"), run_flags()),
        RunCase(parse_training(then), str(tmp_path / "then.json"), run_flags(load=saved)),
    ]
    listed = tmp_path / "cases.pickle"
    listed.write_bytes(pickle.dumps(cases))
    assert launch(3, [str(listed)], program=("-c", RANKS)) == 0
    begun, went_on = (json.loads((tmp_path / name).read_text())["losses"] for name in ("first.json", "then.json"))
    alone = losses(ended(gpt=ONE, batch="4", steps="3", grid="x=1", dtype="float64"))
    assert [*begun, *went_on] == pytest.approx(alone, rel=1e-9)


def test_what_is_no_number_stays_none_in_16_bits():
    """A GPU's own, whose bits are all ones but for the sign, would become -0 by rounding up."""
    own = np.array([0x7FFFFFFF, 0x7FC00000, 0xFFFFFFFF, 0x3F800000], np.uint32).view(np.float32)
    into = np.zeros((1, 4), np.uint16)
    carry_out("cast", KernelArguments(np, (into,), (), (own.reshape(1, 4),), (), {}, 0))
    assert np.isnan((into.astype(np.uint32) << 16).view(np.float32)).tolist() == [[True, True, True, False]]
    assert into[0, 3] == 0x3F80


NOT_ON_A_DEVICE = {
    "a function of NumPy": lambda xp, array: np.exp(array),
    "an array of NumPy": lambda xp, array: array + np.ones(3, np.float32),
    "an array of NumPy, assigned": lambda xp, array: array.__setitem__(..., np.ones(3, np.float32)),
    "a number taken out": lambda xp, array: float(array.sum()),
    "a decision": lambda xp, array: bool(array[0] > 0),
    "a mask": lambda xp, array: array[array > 0],
    "an index of NumPy": lambda xp, array: array[np.arange(2)],
    "a conversion": lambda xp, array: np.asarray(array),
    "a function that CuPy lacks": lambda xp, array: xp.frompyfunc,
}


@pytest.mark.parametrize("act", NOT_ON_A_DEVICE.values(), ids=NOT_ON_A_DEVICE)
def test_the_device_refuses_what_a_kernel_may_not_do(library, act):
    array = library.empty(3, "float32")
    with pytest.raises((TypeError, AssertionError, AttributeError)):
        library.carry_out(lambda: act(library.module, array))


def test_work_outside_the_library_s_stream_is_not_waited_for(library):
    array = library.empty(3, "float32")
    library.zero(array)
    array += 1
    assert library.fetch(array).tolist() == [0, 0, 0]
    library.carry_out(lambda: array.__iadd__(1))
    assert library.fetch(array).tolist() == [1, 1, 1]
