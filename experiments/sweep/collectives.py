"""What is predicted of a collective at one point of a sweep."""

from dataclasses import replace

from quadrille.algorithms.errors import InputError, QuadrilleError
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_command import remarks
from quadrille.experiments.network.collective_flags import parse_question
from quadrille.experiments.network.machine_of_size import collective_machine
from quadrille.experiments.sweep.outcomes import Carried, SweepAnswer
from quadrille.experiments.sweep.points import Asked


def predicted_collective(asked: Asked) -> SweepAnswer:
    """The prediction of a collective, as `quadrille collective` makes it.

    >>> from quadrille.experiments.words.machines import MachineWords
    >>> from quadrille.experiments.network.collective_flags import CollectiveFlags
    >>> gather = CollectiveFlags(kind="all-gather", bytes="1MiB", group="4")
    >>> asked = Asked(collective=gather, on=MachineWords(machine="perlmutter"), gpus="16")
    >>> predicted_collective(asked).ranks, predicted_collective(asked.given("group", "17")).reason
    (4, '--group 17 with --stride 1: needs 17 GPUs, and there are 16')
    """
    if asked.collective is None:
        raise InputError("no collective is asked for")
    try:
        machine, net = collective_machine(asked.on, asked.gpus)
        question = parse_question(replace(asked.collective, gpus=asked.gpus), net.place_count)
        made = predict_collective(question, machine, net=net)
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))
    busiest = made.bottlenecks[0] if made.bottlenecks else None
    return SweepAnswer(
        ranks=question.gpus if question.concurrent == "all" else question.group,
        seconds=made.seconds,
        collective=Carried(
            group=question.group,
            algorithm=made.algorithm,
            algorithm_bandwidth=made.algorithm_bandwidth,
            bus_bandwidth=made.bus_bandwidth,
            seconds_by_part=made.seconds_by_part or {},
            bottleneck=busiest.link if busiest else "",
            bottleneck_utilisation=busiest.utilisation if busiest else None,
            rank_classes=made.rank_classes,
            flow_classes=made.flow_classes,
            events=made.events,
        ),
        remarks=tuple(remarks(made, machine, net)),
    )
