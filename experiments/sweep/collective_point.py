"""The prediction of a collective at one point of a sweep."""

from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_command import collective_remarks
from quadrille.experiments.sweep.sweep_points import OneCollective
from quadrille.experiments.sweep.sweep_result import CollectiveResult, SweepAnswer
from quadrille.simulator.machine.network import network_of


def predict_collective_point(point: OneCollective) -> SweepAnswer:
    """The answer at a point that is a collective, predicted as by `quadrille collective`.

    >>> from quadrille.experiments.network.collective_question import CollectiveQuestion
    >>> from quadrille.topologies.find_machine import find_machine
    >>> gather = CollectiveQuestion(kind="all_gather", bytes=1 << 20, gpus=16, group=4)
    >>> predict_collective_point(OneCollective(gather, find_machine("perlmutter", gpus=16))).ranks
    4

    Raises
    ------
    InputError : the collective is not possible on the machine
    """
    question, machine = point.question, point.machine
    net = network_of(machine)
    prediction = predict_collective(question, machine, net=net)
    busiest = prediction.bottlenecks[0] if prediction.bottlenecks else None
    return SweepAnswer(
        ranks=question.gpus if question.concurrent == "all" else question.group,
        seconds=prediction.seconds,
        collective=CollectiveResult(
            group=question.group,
            algorithm=prediction.algorithm,
            algorithm_bandwidth=prediction.algorithm_bandwidth,
            bus_bandwidth=prediction.bus_bandwidth,
            seconds_by_part=prediction.seconds_by_part or {},
            bottleneck=busiest.link if busiest else "",
            bottleneck_utilisation=busiest.utilisation if busiest else None,
            rank_classes=prediction.rank_classes,
            flow_classes=prediction.flow_classes,
            events=prediction.events,
        ),
        remarks=tuple(collective_remarks(prediction, machine, net)),
    )
