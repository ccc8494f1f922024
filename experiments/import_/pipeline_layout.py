"""Megatron-LM's pipeline layouts (`--pipeline-model-parallel-layout`): the layers of each chunk of each stage.

    Et*3|(tt|)*6tL      E ttt | tt | tt | tt | tt | tt | tt | t L      chunks of 3, 2, 2, 2, 2, 2, 2 and 1 layers

`E` is the embedding, `t` a layer, `m` a layer that predicts further tokens, `L` the loss; `*N` repeats the letter or
group before it, `|` ends a chunk, commas mean nothing.  Chunk i is on stage i modulo the number of stages.  The
embedding is in the first chunk and the loss in the last, and each chunk has a layer: other layouts are refused.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

import re

from quadrille.algorithms.errors import InputError

OPTION = "--pipeline-model-parallel-layout"
GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d{1,4}))?")
REPEATED = re.compile(r"([EtmL|])\*(\d{1,4})")
LONGEST = 20_000
"""Most letters of a layout."""


def layers_of_chunks(layout: str, layers: int, stages: int) -> tuple[int, ...]:
    """The number of layers of each chunk, in the order of the layers.

    >>> layers_of_chunks("Et*3|(tt|)*6tL", 16, 2)
    (3, 2, 2, 2, 2, 2, 2, 1)

    Raises
    ------
    InputError : another text, another number of layers, or chunks that no experiment has
    """
    chunks = _expanded(layout).split("|")
    counts = tuple(chunk.count("t") for chunk in chunks)
    if sum(counts) != layers:
        raise _error(layout, f"has {sum(counts)} layers (t), and --num-layers is {layers}")
    if len(counts) % max(stages, 1):
        raise _error(layout, f"has {len(counts)} chunks, no multiple of {stages} stages")
    if not chunks[0].startswith("E") or not chunks[-1].endswith("L") or layout.count("E") + layout.count("L") != 2:
        raise _error(layout, "has its embedding (E) not at the begin or its loss (L) not at the end")
    if min(counts) == 0:
        raise _error(layout, f"has {counts.count(0)} chunks without a layer (t); an experiment has a layer in each")
    return counts


def _expanded(layout: str) -> str:
    """The letters of a layout, with groups and repetitions written out."""
    text = re.sub(r"[\s,\\'\"]", "", layout)
    while group := GROUP.search(text):
        text = text[: group.start()] + _repeat(layout, group[1], group[2] or "1") + text[group.end() :]
        if len(text) > LONGEST:
            raise _error(layout, f"has more than {LONGEST} letters")
    text = REPEATED.sub(lambda match: _repeat(layout, match[1], match[2]), text)
    if not re.fullmatch(r"[EtmL|]+", text) or len(text) > LONGEST:
        raise _error(layout, "accepted are E, t, m, L, |, parentheses and *N")
    return text


def _repeat(layout: str, text: str, count: str) -> str:
    """A text some times; the letters of a group are repeated first."""
    inner = REPEATED.sub(lambda match: match[1] * int(match[2]), text)
    if len(inner) * int(count) > LONGEST:
        raise _error(layout, f"has more than {LONGEST} letters")
    return inner * int(count)


def _error(layout: str, words: str) -> InputError:
    return InputError(f"{OPTION} {layout:.40}: {words}")
