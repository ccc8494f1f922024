"""What was renamed on purpose since the golden answers were made: the answers never change, these tables do.

`RENAMED`: old word -> new word, replaced wherever it stands as a whole word in a path or a string of a golden answer:
"bytes_sent_total": "sent_bytes_total" renames a key everywhere, "ops[].algorithm": "ops[].method" below ops alone,
"quadrille/record/1": "quadrille/record/2" a schema.  None instead of a new word: the key is gone.  Entries are
applied one after the other.
`REWORDED`: key -> old word -> keys and words that replace it, wherever a path ends in the key
and the answer has none of the other keys.
`ADDED`: paths that today's answers have and the golden ones have not.
`FLAGS`: old words of a command line -> new words, in each case that has none of `NEW_FLAGS`: such a case is newer.

Other renamed flags are edited in the command lines of experiments.toml, runs.toml and bad_inputs.toml.
"""

RENAMED = {
    "quadrille/machine/1": "quadrille/machine/2",
    "quadrille/record/1": "quadrille/record/2",
    "quadrille/timeline/1": "quadrille/timeline/2",
    "simulation.why_not": "simulation.not_folded_reason",
    "reference.at_once": "reference.concurrent_ranks",
    "different_ways": "different_paths",
    "why_not": "not_folded_reason",
}
REWORDED = {
    "recompute": {
        "none": {"attention": "unfused", "recompute": "none"},
        "selective": {"attention": "fused", "recompute": "none"},
        "full": {"attention": "fused", "recompute": "full"},
    }
}
ADDED = {
    "inputs.{}",
    "flags.context_parallel",
    "problem.grid.context",
    "flags.pipeline_schedule",
    "flags.products",
    "flags.sparsity",
    "pass_orders[]",
}
NEW_FLAGS = ("--attention",)
FLAGS = {
    "--recompute none": "--attention unfused --recompute none",
    "--recompute selective": "--attention fused --recompute none",
    "--recompute full": "--attention fused --recompute full",
}
