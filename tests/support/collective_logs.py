"""Logs of nccl-tests with times that a machine predicts."""

from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.topologies.find_machine import find_machine

SIZES = tuple(2**power for power in (12, 14, 16, 20, 24, 25, 26, 27, 28))


def log_text(machine, kind, gpus, per_node, *, settings=(), stride=1, device="NVIDIA H100 80GB HBM3", sizes=SIZES):
    """The table that nccl-tests would print on a named machine after some settings.

    Parameters
    ----------
    gpus : GPUs of all nodes together, of which each `stride`-th takes part
    """
    on, ranks = find_machine(machine, settings, gpus), gpus // stride
    lines = [
        f"#  Rank {rank:2d} Group  0 Pid  7 on node-{rank * stride // per_node} device  {rank} [0x00] {device}"
        for rank in range(ranks)
    ]
    lines += [f"# Collective test starting: {kind.replace('_', '')}_perf".replace("sendreceive", "sendrecv")]
    for size in sizes:
        question = CollectiveQuestion(kind=kind, bytes=size, gpus=gpus, group=ranks, stride=stride, item_bytes=4)
        time = predict_collective(question, on).seconds * 1e6
        lines += [f"{size} {size // 4} float sum -1 " + " ".join([f"{time:.4f} 1.00 1.00 0"] * 2)]
    return "\n".join(lines) + "\n"
