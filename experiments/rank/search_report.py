"""What a ranking of configurations searched and what it did not, with the flags that search the rest."""

import msgspec

from quadrille.experiments.rank.configurations import SearchSpace
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.search_options import SEARCH_OPTIONS, value_text

ONE_VALUE = (
    *("attention", "collectives", "context-parallel", "dropout", "dtype", "expert-load", "fp8-param-gather"),
    *("gradient-bytes", "pipeline-limit", "products", "sparsity", "stages"),
)
"""Options of a training step that a flag of `rank` sets to one value."""
DEFAULT_VALUE = ("bands", "gemm-layouts", "keep-first", "placement", "software", "threads")
"""Options of a training step that `rank` has no flag for."""


class OptionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a ranking, the values that were tried, and the flag that tries more.

    Parameters
    ----------
    values : values that were tried; `all` for every possible value
    search : flag that searches the option; empty if it was searched
    """

    option: str
    values: list[str]
    search: str

    @property
    def text(self) -> str:
        return f"{self.option} {', '.join(self.values)}"


def option_entries(question: RankQuestion, space: SearchSpace) -> list[OptionEntry]:
    """The options of a ranking, the searched options first."""
    values = {
        "grid": ["all"],
        "order": ["all"] if question.limits.order is None else [",".join(question.limits.order)],
        "micro-batch": ["all"] if space.micro_batches is None else [str(size) for size in space.micro_batches],
        "pipeline": ["all"] if space.stages is None else [str(count) for count in space.stages],
        **{
            name: [value_text(value) for value in tried]
            for name, tried in space.options.items()
            if SEARCH_OPTIONS[name].exists_on(question.machine)
        },
        **({"context": [str(count) for count in space.contexts]} if space.contexts != (1,) else {}),
        "sequence-parallel": list(dict.fromkeys("yes" if scheme.stream.finer else "no" for scheme in space.schemes)),
        "scheme": list(dict.fromkeys(scheme.name for scheme in space.schemes)),
    }
    entries = [
        OptionEntry(
            option=option, values=tried, search="" if len(tried) > 1 or tried == ["all"] else _search_flag(option)
        )
        for option, tried in values.items()
    ]
    return sorted(entries, key=lambda entry: bool(entry.search))


def _search_flag(option: str) -> str:
    """The flag that searches an option."""
    others = {
        "order": "--order auto",
        "context": "--context N,…",
        "micro-batch": "--micro-batch auto",
        "scheme": "--scheme all",
    }
    return others.get(option, f"--search {option}")


def searched_lines(entries: list[OptionEntry]) -> list[str]:
    """The options that were searched, and the options that were not, as lines of text."""
    searched = "; ".join(entry.text for entry in entries if not entry.search)
    fixed = [entry for entry in entries if entry.search]
    by_search = [entry.text for entry in fixed if entry.search.startswith("--search ")]
    others = [f"{entry.text} ({entry.search})" for entry in fixed if not entry.search.startswith("--search ")]
    groups = [f"{', '.join(by_search)} (--search all, or NAME,…)"] if by_search else []
    has_driven = any("message-driven" in value for entry in entries for value in entry.values)
    driven = [] if has_driven else ["message-driven pipelines (--pipeline-schedule message-driven)"]
    fixed_options = [f"{', '.join(ONE_VALUE)} (a flag sets each)", f"{', '.join(DEFAULT_VALUE)} (flags of simulate)"]
    return [
        f"searched: {searched}",
        f"not searched: {'; '.join([*groups, *others, *driven, *fixed_options])}",
    ]
