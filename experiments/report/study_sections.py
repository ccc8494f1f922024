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
    """The sentences of a text.

    >>> sentences("4D takes 23.2 s. On 8 GPUs 2.5-D (tesseract) is the last.")
    ['4D takes 23.2 s.', 'On 8 GPUs 2.5-D (tesseract) is the last.']
    """
    return re.split(r"(?<=\.) (?=[A-Z])", text)
