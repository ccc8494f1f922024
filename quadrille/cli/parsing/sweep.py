"""The command `quadrille sweep`: from flags to the points of the sweep, and from each point to its prediction."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.formats.input_files import is_file
from quadrille.cli.parsing.collectives import parse_question
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import MatmulFlags, relevant_flags
from quadrille.cli.parsing.gpus import with_grid_on_gpus
from quadrille.cli.parsing.machines import with_default_dtype
from quadrille.cli.parsing.network_machines import collective_machine
from quadrille.cli.parsing.numbers import whole_number
from quadrille.cli.parsing.runs import files_read
from quadrille.cli.parsing.sweep_checks import check
from quadrille.cli.parsing.sweep_points import SweepFlags, SweptPoints, machine_of, parse_varied
from quadrille.experiments.output.destinations import Destinations, Detail
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.point_search import SearchOptions
from quadrille.experiments.sweep.sweep import SweepDescription, search_sweep
from quadrille.experiments.sweep.sweep import sweep as sweep_points
from quadrille.experiments.sweep.sweep_points import BestGrid, Impossible, OneCollective, OneGrid, SweepPoint
from quadrille.experiments.sweep.sweep_result import Sweep, SweepAnswer
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY, VariedKey
from quadrille.experiments.tasks.task_options import TaskOptions

Question = Callable[[SweepFlags], SweepAnswer]


def sweep(
    base: SweepFlags,
    vary: Sequence[str],
    *,
    json: str = "",
    csv: str = "",
    plot: str = "",
    options: TaskOptions | None = None,
    search: SearchOptions | None = None,
    quiet: bool = False,
    question: Question | None = None,
    command: Sequence[str] = (),
    temporary: Collection[str] = (),
) -> Sweep:
    """The predictions for every combination of the values of all `--vary`; impossible values are refused first.

    Parameters
    ----------
    base : flags that all points have in common
    vary : values of --vary, each `KEY=VALUE,…` (`quadrille.cli.parsing.sweep_points`)
    json, csv, plot : paths of the written files; empty for none
    options : workers of the points, and the store of their answers
    search : search for the best points; None for all points
    quiet : whether progress is hidden
    question : function that returns the answer at a point; by default the prediction
    command : words of the command line, for the record
    temporary : paths of the written files that are removed after the command
    """
    varied = parse_varied(vary, base.keys)
    detail: Detail = "verdict" if quiet else "table"
    destinations = Destinations(
        json=json, csv=csv, plot=plot, read=_files_read(base, varied), detail=detail, temporary=frozenset(temporary)
    )
    options = options or TaskOptions()
    destinations.check({"--store": options.store} if options.store else {})
    check(base, varied)
    flags = _flags_of(base)
    inputs = file_digests(destinations.read)
    common = SweepDescription(flags=flags, varied=varied, best_grid=base.best_grid, inputs=inputs, command=command)
    combined, asked = SweptPoints(base, varied), question or predicted
    shared: dict[str, Any] = {"options": options, "arguments": arguments_of, "label": _label}
    if search is not None:
        return search_sweep(combined, common, search, destinations, question=asked, **shared)
    return sweep_points(combined, common, destinations, question=asked, **shared)


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


def arguments_of(point_flags: SweepFlags) -> tuple[SweepPoint, list[str]]:
    """The values that decide the prediction at a point: the point itself, and the contents of the files it reads."""
    try:
        point = point_of(point_flags)
    except QuadrilleError as error:
        point = Impossible(str(error))
    read = files_read(point_flags.collective or point_flags.experiment)
    return point, [digest for _, digest in sorted(file_digests(read).items())]


def _label(point_flags: SweepFlags) -> str:
    """The flags of a point as JSON."""
    return msgspec.json.encode(_flags_of(point_flags)).decode()


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


def file_digests(read: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each file that a sweep reads, by its flag; a file that cannot be read has none.

    Parameters
    ----------
    read : paths of the files, by flag
    """
    return {flag: sha256(Path(path).read_bytes()).hexdigest() for flag, path in read.items() if is_file(path)}


def _flags_of(point_flags: SweepFlags) -> dict[str, Any]:
    """The flags that are given."""
    flags = {"gpus": point_flags.gpus, **_typed(point_flags), **asdict(point_flags.on)}
    return {flag: value for flag, value in flags.items() if value}


def _typed(base: SweepFlags) -> dict[str, str]:
    """The flags of the multiplication, the training steps or the collective, by their names on the command line."""
    if base.collective is None:
        return relevant_flags(base.experiment)
    flags = asdict(base.collective)
    return {COLLECTIVE_KEY: flags.pop("kind"), **{name: value for name, value in flags.items() if name != "gpus"}}
