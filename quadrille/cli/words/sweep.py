"""`quadrille sweep`: from words to points, and from each point to what is predicted there."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from quadrille.algorithms.errors import QuadrilleError
from quadrille.cli.words.collectives import parse_question
from quadrille.cli.words.experiment import experiment_of
from quadrille.cli.words.flags import MatmulWords, own_words
from quadrille.cli.words.gpus import following
from quadrille.cli.words.machines import with_default_dtype
from quadrille.cli.words.network_machines import collective_machine
from quadrille.cli.words.numbers import whole_number
from quadrille.cli.words.runs import files_read
from quadrille.cli.words.sweep_checks import check
from quadrille.cli.words.sweep_points import SweepWords, machine_of, parse_varied, points
from quadrille.experiments.output.destinations import Destinations, Detail
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.sweep import SweepDescription
from quadrille.experiments.sweep.sweep import sweep as sweep_points
from quadrille.experiments.sweep.sweep_points import BestGrid, OneCollective, OneGrid, SweepPoint
from quadrille.experiments.sweep.sweep_result import Sweep, SweepAnswer
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY, VariedKey

Question = Callable[[SweepWords], SweepAnswer]


def sweep(
    base: SweepWords,
    vary: Sequence[str],
    *,
    json: str = "",
    csv: str = "",
    plot: str = "",
    jobs: int = 1,
    quiet: bool = False,
    question: Question | None = None,
    command: Sequence[str] = (),
) -> Sweep:
    """Predicts every combination of the values of all `--vary`; all that can never be is refused before.

    Parameters
    ----------
    base : the words that all points have in common
    vary : each `KEY=VALUE,…`, as `quadrille.cli.words.sweep_points` says
    quiet : whether progress is not shown
    question : gives the answer at a point; by default the prediction
    """
    varied = parse_varied(vary, base.keys)
    detail: Detail = "verdict" if quiet else "table"
    destinations = Destinations(json=json, csv=csv, plot=plot, read=_files_read(base, varied), detail=detail)
    destinations.check()
    check(base, varied)
    flags = {"gpus": base.gpus, **_typed(base), **asdict(base.on)}
    common = SweepDescription(flags=flags, varied=varied, best_grid=base.best_grid, command=command)
    return sweep_points(list(points(base, varied)), common, destinations, jobs=jobs, question=question or predicted)


def predicted(words: SweepWords) -> SweepAnswer:
    """The prediction at a point that words name; a reason where it cannot be.

    >>> from quadrille.cli.words.machines import MachineWords
    >>> matmul = MatmulWords(matmul="64,64,64", grid="x=8")
    >>> predicted(SweepWords(flags=matmul, on=MachineWords(machine="perlmutter")).given("algorithm", "cannon")).reason
    'grid z=1, x=8 is not square: cannon takes z=q,x=q, that is 1, 4, 9, 16, … ranks a layer'
    """
    try:
        point = point_of(words)
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))
    return predict_point(point)


def point_of(words: SweepWords) -> SweepPoint:
    """The point that words name.

    Raises
    ------
    InputError : a flag that cannot be, or does not go with the others
    """
    if words.collective is not None:
        machine, net = collective_machine(words.on, words.gpus)
        return OneCollective(parse_question(replace(words.collective, gpus=words.gpus), net.endpoint_count), machine)
    flags = with_default_dtype(words.flags, words.on)
    if words.best_grid:
        gpus = whole_number(words.gpus, "gpus")
        experiment = experiment_of(replace(flags, grid=MatmulWords().grid))
        return BestGrid(experiment, gpus, machine_of(words.on, gpus), words.top)
    if words.gpus:
        flags = replace(flags, grid=str(following(flags.grid, whole_number(words.gpus, "gpus"))))
    experiment = experiment_of(flags)
    return OneGrid(experiment, machine_of(words.on, experiment.grid.size))


def _files_read(base: SweepWords, varied: Sequence[VariedKey]) -> dict[str, str]:
    """The files that points read, by the flag or the value that names them."""
    read = _read_at(base)
    for key in varied:
        for value in key.values:
            at_value = _read_at(base.given(key.key, value))
            read |= {f"--vary {key.key}={value}": path for path in at_value.values() if path == value}
    return read


def _read_at(words: SweepWords) -> dict[str, str]:
    return words.on.files | files_read(words.collective or words.flags)


def _typed(base: SweepWords) -> dict[str, str]:
    """The flags of the multiplication, the training steps or the collective, by their names on the command line."""
    if base.collective is None:
        return own_words(base.flags)
    flags = asdict(base.collective)
    return {COLLECTIVE_KEY: flags.pop("kind"), **{name: value for name, value in flags.items() if name != "gpus"}}
