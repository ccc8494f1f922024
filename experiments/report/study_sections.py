"""The part of a report about the findings of a study: its answer, then the charts and tables of a sweep."""

import re
from dataclasses import replace

from quadrille.experiments.report.elements import Part
from quadrille.experiments.report.search_sections import sweep_part
from quadrille.experiments.sweep.sweep_result import Sweep
from quadrille.experiments.sweep.training_study import Findings


def findings_part(findings: Findings, source: str) -> Part:
    """The part of a report about the findings of a study; its verdict is the first sentence of the answer.

    Lines about points without an answer, and about those that do not fit in memory, follow the answer.
    """
    keys = dict.fromkeys(key for row in findings.rows for key in row.point)
    sweep = Sweep(
        flags=dict(findings.flags),
        varied={key: tuple(dict.fromkeys(row.point.get(key, "") for row in findings.rows)) for key in keys},
        best_grid=True,
        points=findings.rows,
        provenance=findings.provenance,
    )
    verdict, *lines = sentences(findings.answer)
    part = sweep_part(sweep, source)
    return replace(part, title=f"Study: {findings.study}", verdict=verdict, lines=[*lines, *part.lines])


def sentences(text: str) -> list[str]:
    r"""The sentences of an answer: its lines; those of an answer in one line end with a full stop before a capital.

    >>> sentences("4D takes 23.2 s. On 8 GPUs 2.5-D (tesseract) is the last.")
    ['4D takes 23.2 s.', 'On 8 GPUs 2.5-D (tesseract) is the last.']
    >>> sentences("4D takes 23.2 s.\nllama3-8b on 8 GPUs takes 4 s.")
    ['4D takes 23.2 s.', 'llama3-8b on 8 GPUs takes 4 s.']
    """
    return text.splitlines() if "\n" in text else re.split(r"(?<=\.) (?=[A-Z])", text)
