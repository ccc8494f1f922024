"""What a sweep keeps of the prediction of a collective."""

from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_command import remarks
from quadrille.experiments.sweep.outcomes import Carried, SweepAnswer
from quadrille.experiments.sweep.points import OneCollective
from quadrille.simulator.machine.network import network_of


def predicted_collective(point: OneCollective) -> SweepAnswer:
    """The prediction of a collective, as `quadrille collective` makes it.

    >>> from quadrille.experiments.network.question import CollectiveQuestion
    >>> from quadrille.topologies.find_machine import find_machine
    >>> gather = CollectiveQuestion(kind="all_gather", bytes=1 << 20, gpus=16, group=4)
    >>> predicted_collective(OneCollective(gather, find_machine("perlmutter", gpus=16))).ranks
    4

    Raises
    ------
    InputError : a collective that cannot be on the machine
    """
    question, machine = point.question, point.machine
    net = network_of(machine)
    made = predict_collective(question, machine, net=net)
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
