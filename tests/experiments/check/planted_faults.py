"""`python -m tests.experiments.check.planted_faults [SEED [COUNT]]`: how often `check` names a planted fault.

Faults, machines, collectives and shares are drawn; times have noise of 3 %.  A row for each fault: the place of the
right cause among the explanations, and the number of causes that the first two explanations name.
"""

import random
import re
import sys
from dataclasses import dataclass, replace

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.experiments.check.explanations import Call, distance, explanations
from quadrille.experiments.check.link_patterns import Links
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import with_faults

SIZES = [2**power for power in (12, 18, 22, 26, 30)]
NOISE = 0.03
JOBS = (
    *(("h100-superpod", 8), ("perlmutter", 8), ("selene", 16), ("h100-superpod", 16), ("aws-p4d", 16)),
    *(("perlmutter", 16), ("selene", 32), ("h100-superpod", 32), ("perlmutter", 32), ("h100-superpod", 64)),
)
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
LEAST_GAP = 0.15
"""Least distance of the measured times from the expected times: a fault that changes less is none."""


@dataclass(frozen=True)
class Fault:
    """A fault: words of its cause, and what it changes."""

    words: str
    degrade: tuple[str, ...] = ()
    choices: str = ""
    longer: float = 0.0


def faults_of(machine, across, share):
    """The faults that can be planted in a machine; a share of its rate stays of a slow link."""
    links = Links(network_of(machine))
    patterns = {
        "the NVLinks of one GPU" if links.switched else "the link between two GPUs": links.one_inside,
        "one network card of the last node": links.last_card if across else "",
        "every network card": links.all_cards if across else "",
        "the PCIe link between one GPU": links.one_host if across else "",
    }
    yield from (Fault(words, (f"{pattern}={share}",)) for words, pattern in patterns.items() if pattern)
    yield Fault("NCCL uses ring with LL for", choices="nccl:ring:LL")
    yield Fault("longer, whatever its size", longer=3e-4)


def calls_with(fault, machine, gpus, kind, draw):
    """Calls of a machine with a fault, with noise, beside the expected times."""
    faulty = with_faults(machine, degrade=fault.degrade)
    for size in SIZES:
        question = CollectiveQuestion(kind=kind, bytes=size, gpus=gpus, group=gpus, item_bytes=4)
        held = replace(question, choices=parse_choices(fault.choices)) if fault.choices else question
        seconds = predict_collective(held, faulty).seconds + fault.longer
        measured = seconds * draw.lognormvariate(0, NOISE)
        yield Call(question, measured, predict_collective(question, machine).seconds)


def main(seed="0", count="40"):
    draw, names, right, drawn = random.Random(seed), 0, 0, 0
    print("| machine | GPUs | collective | planted | place | causes of the first two |\n|---|---|---|---|---|---|")
    while drawn < int(count):
        (name, gpus), kind, share = JOBS[drawn % len(JOBS)], draw.choice(KINDS), round(draw.uniform(0.12, 0.7), 2)
        machine = find_machine(name, (), gpus)
        across = gpus > network_of(machine).per_node
        fault = draw.choice(list(faults_of(machine, across, share)))
        calls = list(calls_with(fault, machine, gpus, kind, draw))
        if distance(calls, [call.expected for call in calls]) < LEAST_GAP:
            continue
        causes = [explanation.cause for explanation in explanations(calls, machine, across)]
        place = next((place for place, cause in enumerate(causes, start=1) if fault.words in cause), 0)
        named = sum(len(re.findall(", or ", cause)) + 1 for cause in causes[:2])
        drawn, right, names = drawn + 1, right + (place in (1, 2)), names + named
        planted = f"{fault.words} at {share}" if fault.degrade else fault.words
        print(f"| {name} | {gpus} | {kind} | {planted} | {place or 'none'} | {named} |", flush=True)
    print(f"\n{right} of {drawn} among the first two explanations, which name {names / drawn:.1f} causes in the mean")


if __name__ == "__main__":
    main(*sys.argv[1:])
