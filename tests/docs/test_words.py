"""A reader who searches for the words of the trade finds them, with our word beside."""

import re

import pytest

from tests.support.documents import README
from tests.support.quadrille import ROOT

IN_README = (
    "tensor parallelism",
    "pipeline parallelism",
    "data parallelism",
    "expert parallelism",
    "context parallelism",
    *("TP", "PP", "DP", "EP", "CP", "FSDP", "ZeRO-3", "MFU", "HFU", "NCCL bus bandwidth"),
)
IN_DOCUMENTATION = (
    *IN_README,
    "sequence parallelism",
    *("ZeRO-1", "ZeRO-2", "HSDP", "SP", "VPP", "MoE", "1F1B", "algbw", "busbw", "ring attention", "NVLS"),
    *("gradient accumulation", "activation checkpointing", "distributed optimizer", "mixture of experts"),
    *("device mesh", "process group", "world size", "global batch size", "rail-optimised", "oversubscription"),
)


@pytest.mark.parametrize("word", IN_README)
def test_the_readme_has_the_words_of_the_trade(word):
    assert re.search(rf"\b{re.escape(word)}\b", README.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("word", IN_DOCUMENTATION)
def test_the_documentation_has_the_words_of_the_trade(word):
    page = (ROOT / "docs/explanation/parallelism.md").read_text()
    assert re.search(rf"\b{re.escape(word)}\b", page, re.IGNORECASE)
