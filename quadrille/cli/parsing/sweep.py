"""The command `quadrille sweep`: from flags to the points of the sweep, and from each point to its prediction."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from quadrille.algorithms.errors import QuadrilleError
from quadrille.cli.parsing.collectives import parse_question
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import MatmulFlags, relevant_flags
from quadrille.cli.parsing.gpus import with_grid_on_gpus
from quadrille.cli.parsing.machines import with_default_dtype
from quadrille.cli.parsing.network_machines import collective_machine
from quadrille.cli.parsing.numbers import whole_number
from quadrille.cli.parsing.runs import files_read
from quadrille.cli.parsing.sweep_checks import check
from quadrille.cli.parsing.sweep_points import SweepFlags, machine_of, parse_varied, points
from quadrille.experiments.output.destinations import Destinations, Detail
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.resumed_sweep import file_digests
from quadrille.experiments.sweep.sweep import SweepDescription
from quadrille.experiments.sweep.sweep import sweep as sweep_points
from quadrille.experiments.sweep.sweep_points import BestGrid, OneCollective, OneGrid, SweepPoint
from quadrille.experiments.sweep.sweep_result import Sweep, SweepAnswer
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY, VariedKey

Question = Callable[[SweepFlags], SweepAnswer]


def sweep(
    base: SweepFlags,
    vary: Sequence[str],
    *,
    json: str = "",
    csv: str = "",
    plot: str = "",
    jobs: int = 1,
    quiet: bool = False,
    resume: bool = False,
    question: Question | None = None,
    command: Sequence[str] = (),
) -> Sweep:
    """The predictions for every combination of the values of all `--vary`; impossible values are refused first.

    Parameters
    ----------
    base : flags that all points have in common
    vary : values of --vary, each `KEY=VALUE,…` (`quadrille.cli.parsing.sweep_points`)
    json, csv, plot : paths of the written files; empty for none
    jobs : number of processes
    quiet : whether progress is hidden
    resume : whether answers in the JSON of an earlier run are taken
    question : function that returns the answer at a point; by default the prediction
    command : words of the command line, for the record
    """
    varied = parse_varied(vary, base.keys)
    detail: Detail = "verdict" if quiet else "table"
    destinations = Destinations(json=json, csv=csv, plot=plot, read=_files_read(base, varied), detail=detail)
    destinations.check()
    check(base, varied)
    flags = {"gpus": base.gpus, **_typed(base), **asdict(base.on)}
    inputs = file_digests(destinations.read)
    common = SweepDescription(flags=flags, varied=varied, best_grid=base.best_grid, inputs=inputs, command=command)
    return sweep_points(
        list(points(base, varied)), common, destinations, jobs=jobs, resume=resume, question=question or predicted
    )


def predicted(point_flags: SweepFlags) -> SweepAnswer:
    """The prediction at a point of the sweep, or the reason why there is none.

    >>> from quadrille.cli.parsing.machines import MachineFlags
    >>> matmul = MatmulFlags(matmul="64,64,64", grid="x=8")
    >>> flags = SweepFlags(experiment=matmul, on=MachineFlags(machine="perlmutter"))
    >>> predicted(flags.given("algorithm", "cannon")).reason
    'grid z=1, x=8 is not square: cannon takes z=q,x=q, that is 1, 4, 9, 16, … ranks a layer'
    """
    try:
        point = point_of(point_flags)
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))
    return predict_point(point)


def point_of(point_flags: SweepFlags) -> SweepPoint:
    """The point of the sweep that the flags describe.

    Raises
    ------
    InputError : a flag with an unaccepted value, or flags that exclude each other
    """
    if point_flags.collective is not None:
        machine, net = collective_machine(point_flags.on, point_flags.gpus)
        return OneCollective(
            parse_question(replace(point_flags.collective, gpus=point_flags.gpus), net.endpoint_count), machine
        )
    flags = with_default_dtype(point_flags.experiment, point_flags.on)
    if point_flags.best_grid:
        gpus = whole_number(point_flags.gpus, "gpus")
        experiment = experiment_of(replace(flags, grid=MatmulFlags().grid))
        return BestGrid(experiment, gpus, machine_of(point_flags.on, gpus), point_flags.top)
    if point_flags.gpus:
        flags = with_grid_on_gpus(flags, point_flags.gpus)
    experiment = experiment_of(flags)
    gpus = max(experiment.grid.size, whole_number(point_flags.gpus or "1", "gpus"))
    return OneGrid(experiment, machine_of(point_flags.on, gpus))


def _files_read(base: SweepFlags, varied: Sequence[VariedKey]) -> dict[str, str]:
    """The input files of all points, by the flag or the `--vary` value that names them."""
    read = _read_at(base)
    for key in varied:
        for value in key.values:
            at_value = _read_at(base.given(key.key, value))
            read |= {f"--vary {key.key}={value}": path for path in at_value.values() if path == value}
    return read


def _read_at(point_flags: SweepFlags) -> dict[str, str]:
    return point_flags.on.files | files_read(point_flags.collective or point_flags.experiment)


def _typed(base: SweepFlags) -> dict[str, str]:
    """The flags of the multiplication, the training steps or the collective, by their names on the command line."""
    if base.collective is None:
        return relevant_flags(base.experiment)
    flags = asdict(base.collective)
    return {COLLECTIVE_KEY: flags.pop("kind"), **{name: value for name, value in flags.items() if name != "gpus"}}
