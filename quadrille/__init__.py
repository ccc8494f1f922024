"""Sharded matrix multiplication and training steps: written once as a schedule, simulated and executed.

A schedule is built from a problem and a grid of ranks.  The simulator predicts its time on a machine, and the executor
runs it on ranks:

>>> from quadrille import Grid, InProcess, Matmul, execute, find_machine, matmul_schedule, simulate
>>> import numpy as np
>>> schedule = matmul_schedule(Matmul(64, 32, 16), "4d", Grid(z=2, x=2))
>>> machine = find_machine("perlmutter", gpus=4)
>>> prediction = simulate(schedule, machine)
>>> f"{1e6 * prediction.seconds:.1f} us"
'22.5 us'
>>> [row["name"] for row in prediction.rows()]
['gather B', 'multiply C', 'sum C']
>>> a, b = np.ones((64, 32), np.float32), np.ones((32, 16), np.float32)
>>> execution = execute(schedule, {"A": a, "B": b}, InProcess(4))
>>> float(execution.outputs[0]["C"][0, 0])
32.0

An experiment adds what a record names, and `predict` gives the record:

>>> from quadrille import MatmulExperiment, predict
>>> record = predict(MatmulExperiment(Matmul(64, 32, 16), Grid(z=2, x=2)), machine)
>>> record.seconds == prediction.seconds, record.ranks
(True, 4)

Problems and grids    Matmul, Mlp, Gpt, find_shape, gpt_from_shape, Grid
Schedules             matmul_schedule, mlp_schedule, gpt_schedule, overlap
Simulator, executor   simulate, execute, InProcess, MpiCarrier
Machines              Machine, find_machine, load_machine
Experiments           MatmulExperiment, TrainingExperiment, predict
Questions             sweep of OneGrid and BestGrid, rank of a RankQuestion, collective of a CollectiveQuestion
Records               Record, load_record, compare
Errors                QuadrilleError, InputError, RunError, Deadlock

Results give rows of plain values (`pandas.DataFrame(record.rows())`) and show themselves in a notebook.  The command
line is `quadrille`, or `python -m quadrille`.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quadrille.algorithms.errors import Deadlock as Deadlock
    from quadrille.algorithms.errors import InputError as InputError
    from quadrille.algorithms.errors import QuadrilleError as QuadrilleError
    from quadrille.algorithms.errors import RunError as RunError
    from quadrille.algorithms.formats.record import Record as Record
    from quadrille.algorithms.formats.record import load_record as load_record
    from quadrille.algorithms.matmuls.catalogue import matmul_schedule as matmul_schedule
    from quadrille.algorithms.matmuls.matmul import Matmul as Matmul
    from quadrille.algorithms.passes.overlap import overlap as overlap
    from quadrille.algorithms.schedule.grid import Grid as Grid
    from quadrille.algorithms.training.gpt import Gpt as Gpt
    from quadrille.algorithms.training.gpt import gpt_from_shape as gpt_from_shape
    from quadrille.algorithms.training.gpt import gpt_schedule as gpt_schedule
    from quadrille.algorithms.training.mlp import Mlp as Mlp
    from quadrille.algorithms.training.mlp import mlp_schedule as mlp_schedule
    from quadrille.algorithms.training.model_files import find_shape as find_shape
    from quadrille.experiments.compare.compare_records import compare_records as compare
    from quadrille.experiments.network.collective import predict_collective as collective
    from quadrille.experiments.network.collective_question import CollectiveQuestion as CollectiveQuestion
    from quadrille.experiments.predict.predict import prediction_record as predict
    from quadrille.experiments.predict.schedule_prediction import simulate as simulate
    from quadrille.experiments.rank.rank import ranking as rank
    from quadrille.experiments.rank.rank_question import RankQuestion as RankQuestion
    from quadrille.experiments.sweep.sweep import predict_points as sweep
    from quadrille.experiments.sweep.sweep_points import BestGrid as BestGrid
    from quadrille.experiments.sweep.sweep_points import OneGrid as OneGrid
    from quadrille.experiments.workloads.matmul import MatmulExperiment as MatmulExperiment
    from quadrille.experiments.workloads.training import TrainingExperiment as TrainingExperiment
    from quadrille.runtime.carriers.in_process import InProcess as InProcess
    from quadrille.runtime.carriers.mpi import MpiCarrier as MpiCarrier
    from quadrille.runtime.execution.execute import execute as execute
    from quadrille.topologies.find_machine import find_machine as find_machine
    from quadrille.topologies.machines.machine import Machine as Machine
    from quadrille.topologies.machines.machine_file import load_machine as load_machine

__all__ = [
    "BestGrid",
    "CollectiveQuestion",
    "Deadlock",
    "Gpt",
    "Grid",
    "InProcess",
    "InputError",
    "Machine",
    "Matmul",
    "MatmulExperiment",
    "Mlp",
    "MpiCarrier",
    "OneGrid",
    "QuadrilleError",
    "RankQuestion",
    "Record",
    "RunError",
    "TrainingExperiment",
    "collective",
    "compare",
    "execute",
    "find_machine",
    "find_shape",
    "gpt_from_shape",
    "gpt_schedule",
    "load_machine",
    "load_record",
    "matmul_schedule",
    "mlp_schedule",
    "overlap",
    "predict",
    "rank",
    "simulate",
    "sweep",
]

IMPORT_PATHS = {
    "Matmul": "quadrille.algorithms.matmuls.matmul:Matmul",
    "Mlp": "quadrille.algorithms.training.mlp:Mlp",
    "Gpt": "quadrille.algorithms.training.gpt:Gpt",
    "Grid": "quadrille.algorithms.schedule.grid:Grid",
    "matmul_schedule": "quadrille.algorithms.matmuls.catalogue:matmul_schedule",
    "gpt_schedule": "quadrille.algorithms.training.gpt:gpt_schedule",
    "mlp_schedule": "quadrille.algorithms.training.mlp:mlp_schedule",
    "overlap": "quadrille.algorithms.passes.overlap:overlap",
    "simulate": "quadrille.experiments.predict.schedule_prediction:simulate",
    "execute": "quadrille.runtime.execution.execute:execute",
    "InProcess": "quadrille.runtime.carriers.in_process:InProcess",
    "MpiCarrier": "quadrille.runtime.carriers.mpi:MpiCarrier",
    "Machine": "quadrille.topologies.machines.machine:Machine",
    "find_machine": "quadrille.topologies.find_machine:find_machine",
    "load_machine": "quadrille.topologies.machines.machine_file:load_machine",
    "MatmulExperiment": "quadrille.experiments.workloads.matmul:MatmulExperiment",
    "TrainingExperiment": "quadrille.experiments.workloads.training:TrainingExperiment",
    "predict": "quadrille.experiments.predict.predict:prediction_record",
    "sweep": "quadrille.experiments.sweep.sweep:predict_points",
    "rank": "quadrille.experiments.rank.rank:ranking",
    "collective": "quadrille.experiments.network.collective:predict_collective",
    "Record": "quadrille.algorithms.formats.record:Record",
    "load_record": "quadrille.algorithms.formats.record:load_record",
    "compare": "quadrille.experiments.compare.compare_records:compare_records",
    "find_shape": "quadrille.algorithms.training.model_files:find_shape",
    "gpt_from_shape": "quadrille.algorithms.training.gpt:gpt_from_shape",
    "OneGrid": "quadrille.experiments.sweep.sweep_points:OneGrid",
    "BestGrid": "quadrille.experiments.sweep.sweep_points:BestGrid",
    "RankQuestion": "quadrille.experiments.rank.rank_question:RankQuestion",
    "CollectiveQuestion": "quadrille.experiments.network.collective_question:CollectiveQuestion",
    "QuadrilleError": "quadrille.algorithms.errors:QuadrilleError",
    "InputError": "quadrille.algorithms.errors:InputError",
    "RunError": "quadrille.algorithms.errors:RunError",
    "Deadlock": "quadrille.algorithms.errors:Deadlock",
}
"""The import path `module:name` of each public name, as above; a name is imported when it is first used."""


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in IMPORT_PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = resolve_name(IMPORT_PATHS[name])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
