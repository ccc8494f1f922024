"""The verbs as the command line calls them: words in, answers out."""

from quadrille.cli.parsing.collectives import parse_kind, parse_question
from quadrille.cli.parsing.network_machines import collective_machine, flows_machine
from quadrille.cli.parsing.ranking import command_of_fastest, parse_space
from quadrille.cli.parsing.ranking import parse_question as parse_rank_question
from quadrille.cli.parsing.runs import files_read
from quadrille.cli.parsing.sweep import point_of
from quadrille.experiments.network.collective_command import collective
from quadrille.experiments.network.flows_command import flows
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.rank.rank import rank
from quadrille.experiments.sweep.training_point import predict_training_point


def step_predicted(words):
    """The training step at a point of a sweep, predicted from a few of its layers."""
    return predict_training_point(point_of(words))


def ranked(words, on, *, json="", command=()):
    """The ranking that the words ask for."""
    return rank(
        parse_rank_question(words, on),
        parse_space(words) if words.ranks_schemes else None,
        destinations=Destinations(json=json, read=on.files | files_read(words)),
        command=command,
        again=lambda best: command_of_fastest(words, on, best),
    )


def collective_predicted(words, on, *, json="", **more):
    """The collective that the words ask for."""
    parse_kind(words.kind)
    machine, net = collective_machine(on, words.gpus)
    destinations = Destinations(json=json, read=on.files | files_read(words))
    return collective(parse_question(words, net.endpoint_count), machine, destinations=destinations, **more)


def flows_predicted(traffic, on, *, gpus=None, json="", **more):
    """The flows of a file on the machine that the words name."""
    destinations = Destinations(json=json, read=on.files)
    return flows(traffic, lambda needed: flows_machine(on, gpus, needed), destinations=destinations, **more)
