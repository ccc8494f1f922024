"""The panels of the help text: titles such as "Workload" or "Machine", each with the names of its flags."""

PANELS: dict[str, tuple[str, ...]] = {
    "Workload": (
        "from_record", "matmul", "mlp", "gpt", "sequence", "approximate", "batch", "steps", "dtype", "passes",
        "transposed", "operands", "seed", "learning_rate", "clip", "a", "b", "dc", "collective", "bytes", "root",
        "weights", "model", "vocabulary",
    ),
    "Parallelism": (
        "gpus", "nodes", "grid", "algorithm", "scheme", "order", "pipeline", "micro_batch", "interleave",
        "pipeline_schedule", "pipeline_limit", "stages", "zero", "sequence_parallel", "context", "context_parallel",
        "overlap", "bands",
        "collectives", "attention", "recompute", "products", "fp8_param_gather", "dropout", "sparsity", "prune",
        "sparse_states", "offload", "expert_load", "keep_first", "gathered", "group", "stride", "concurrent",
        "channels", "best_grid", "top", "search", "powers_of_two", "min_model_parallel", "vary",
    ),
    "Machine": ("machine", "settings", "routing", "fail", "degrade", "slow", "jitter", "placement", "topology", "rate",
                "node", "bandwidth", "latency", "switch_latency", "oversubscription"),
    "Execution": (
        "ranks", "warmups", "repeats", "verify", "verify_method", "threads", "backend",
        "device_memory", "load", "save", "jobs", "quick",
    ),
    "Output": (
        "quiet", "verbose", "c", "da", "db", "json", "csv", "plot", "plot_of", "figure", "trace", "timeline",
        "timelines", "report", "out", "toml", "folder", "messages",
    ),
    "Advanced": (
        "panel", "gemm_layouts", "gradient_bytes", "software", "blas", "carrier", "chunk", "progress", "shards",
        "granularity", "form", "no_fold", "no_fold_time", "no_memory", "no_local", "most_seconds",
    ),
    "Other": (),
}  # fmt: skip
"""The names of flags by panel, the rarely used panels last; a flag without a panel is in the last one."""


def panel_of(name: str) -> str:
    """The panel that lists a flag.

    >>> panel_of("grid"), panel_of("no_fold"), panel_of("help")
    ('Parallelism', 'Advanced', 'Other')
    """
    return next((panel for panel, names in PANELS.items() if name in names), "Other")
