"""Training logs with known step times, written here in the form of each program."""


def megatron_log(milliseconds, *, batch=8, gpus=2, teraflops=100.0, megabytes=2048.0):
    """The log of a run under Megatron-LM, with its arguments, iterations and memory."""
    lines = [
        "using world size: 2, data-parallel size: 2",
        "------------------------ arguments ------------------------",
        f"  global_batch_size ............................... {batch}",
        "  hidden_size ..................................... 64",
        "  num_layers ...................................... 2",
        "  seq_length ...................................... 32",
        f"  world_size ...................................... {gpus}",
        "-------------------- end of arguments ---------------------",
    ]
    count = len(milliseconds)
    for number, time in enumerate(milliseconds, 1):
        lines.append(
            f" [2026-01-02 03:04:05] iteration {number:8}/{count:8} | consumed samples: {number * batch:12} | "
            f"elapsed time per iteration (ms): {time} | throughput per GPU (TFLOP/s/GPU): {teraflops} | "
            f"learning rate: 1.0E-04 | global batch size: {batch:5} | lm loss: 1.0E+01 | loss scale: 1.0 |"
        )
        lines.append(
            f"[Rank 0] (after {number} iterations) memory (MB) | allocated: 1024.5 | max allocated: {megabytes} | "
            "reserved: 4096.0 | max reserved: 4096.0"
        )
    return "\n".join(lines) + "\n"
