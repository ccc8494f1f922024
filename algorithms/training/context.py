"""Context parallelism: the order in which ranks along `context` hold the tokens of a sequence, and its three forms.

A sequence of s tokens is cut into 2c chunks, of which member j of c holds chunks j and 2c - 1 - j.  Under causal
attention every member then multiplies as many pairs of tokens as any other, in every step of a ring too.

    4 members         0 1 2 3 3 2 1 0          chunks of a sequence, and the member that holds each

Rows of activations are numbered member by member, so that the rows of a member are contiguous:

    rows of data and z    = rows of member 0, of member 1, …
    rows of a member      = of each sequence: its tokens in chunk j, then those in chunk 2c - 1 - j

Everything but attention works row by row.  Attention needs the keys and values of other members:

    ring         keys and values are passed on around the ring while attention to those at hand is computed
    all-gather   keys and values are gathered before attention; their gradients are reduce-scattered
    ulysses      all-to-all: queries, keys and values of all tokens for a share of the heads, and back

Source: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", arXiv 2310.01889;
Brandon et al., "Striped Attention", arXiv 2311.09431 (the imbalance of causal rings); NVIDIA, Megatron Core, "Context
parallelism" (two chunks a rank; p2p, all_gather, a2a); Llama Team, "The Llama 3 Herd of Models", arXiv 2407.21783,
section 3.3.2 (all-gather); Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509.
"""

from typing import Any, Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis, Grid

ContextForm = Literal["ring", "all-gather", "ulysses"]
FORMS: tuple[ContextForm, ...] = get_args(ContextForm)
OTHER_WORDS: dict[str, ContextForm] = {
    "p2p": "ring",
    "all_gather": "all-gather",
    "allgather": "all-gather",
    "a2a": "ulysses",
    "all-to-all": "ulysses",
}
"""Words of Megatron's `--cp-comm-type` and others."""
CONTEXT: Axis = "context"


def find_context_form(word: str) -> ContextForm:
    """Returns the form of context parallelism that a word names, ours or Megatron's.

    >>> find_context_form("ring"), find_context_form("a2a")
    ('ring', 'ulysses')

    Raises
    ------
    InputError : an unknown word
    """
    for form in FORMS:
        if word == form:
            return form
    if word.lower() in OTHER_WORDS:
        return OTHER_WORDS[word.lower()]
    raise InputError(f"context-parallel {word!r}: accepted are {', '.join(FORMS)}, or p2p, all_gather, a2a")


def check_context(grid: Grid, form: ContextForm, sequence: int, heads: int, groups: int, columns: Axis) -> None:
    """Checks that the context axis can cut the sequences of a model.

    Parameters
    ----------
    grid : grid of ranks
    form : form of context parallelism
    sequence : tokens of a sequence
    heads, groups : query heads, and heads of keys and values
    columns : axis that cuts the heads

    Raises
    ------
    InputError : a sequence without two equal chunks for each member; heads that cannot be exchanged
    """
    members = grid.context
    if members == 1:
        return
    if sequence % (2 * members):
        raise InputError(
            f"grid context={members}: each member holds two of {2 * members} equal chunks of a sequence, "
            f"so a sequence of a multiple of {2 * members} tokens is accepted, not {sequence}"
        )
    if form == "ulysses" and groups % (members * grid.length(columns)):
        named = f"heads = {heads}" if groups == heads else f"key_heads = {groups}"
        raise InputError(
            f"grid context={members}: context-parallel ulysses cuts heads over {columns} and context, so {columns}="
            f"{grid.length(columns)} times context={members} must divide {named} (not with ring or all-gather)"
        )


def natural_rows(rows: Any, first: int, stop: int, sequence: int, context: int) -> Any:
    """The rows of the batch, sequence by sequence, that rows in the order of the members are.

    Parameters
    ----------
    rows : rows in the order of the members, a number or an array
    first, stop : the whole sequences that the members share, as rows
    sequence : tokens of a sequence
    context : number of members

    >>> [natural_rows(row, 0, 16, 8, 2) for row in range(16)]
    [0, 1, 6, 7, 8, 9, 14, 15, 2, 3, 4, 5, 10, 11, 12, 13]
    """
    share, tokens, chunk = (stop - first) // context, sequence // context, sequence // (2 * context)
    member, place = (rows - first) // share, (rows - first) % share
    within = place % tokens
    number = member + within // chunk * (2 * context - 1 - 2 * member)
    return first + place // tokens * sequence + number * chunk + within % chunk
