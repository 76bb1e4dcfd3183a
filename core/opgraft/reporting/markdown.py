"""Reports in Markdown, to paste into an issue. Names from a model are code there, whatever is in them."""

from __future__ import annotations

import re
from typing import Any

import jinja2

from opgraft.reporting.compare import Comparison
from opgraft.reporting.coverage import share_text
from opgraft.reporting.matrix import Matrix
from opgraft.reporting.report import Report
from opgraft.reporting.terminal_many import cell_text, comparison_rows, problem_text
from opgraft.reporting.what_if import WhatIf
from opgraft.reporting.wording import (
    MORE_CROSSES,
    cause_text,
    counted,
    saves_less_than_nothing,
    saving_text,
    traffic_text,
)
from opgraft.text import printable


def report_as_markdown(report: Report) -> str:
    """A report on one model."""
    return _rendered("report.md.j2", report=report)


def comparison_as_markdown(found: Comparison) -> str:
    """What differs between two reports."""
    return _rendered("comparison.md.j2", found=found, rows=comparison_rows(found))


def matrix_as_markdown(matrix: Matrix) -> str:
    """The models of a folder, and the operators in them."""
    return _rendered("matrix.md.j2", matrix=matrix)


def code(text: str) -> str:
    """Text in a code span, in which nothing has a meaning: a table's bars are escaped, and backticks outnumbered.

    Backslashes before a bar are doubled, or the last of them would be the one that is escaped, and not the bar.
    """
    text = re.sub(r"(\\*)\|", r"\1\1\|", printable(text))
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}" if text.strip() else "` `"


def _rendered(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("opgraft.reporting"),
        autoescape=False,  # this is not HTML; `code` is what keeps names from meaning anything
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        code=code,
        counted=counted,
        share=share_text,
        traffic=traffic_text,
        cause=cause_text,
        saves_less_than_nothing=saves_less_than_nothing,
        cell=cell_text,
        problem=problem_text,
        tensors_saved=lambda each: _saved(each)[0],
        bytes_saved=lambda each: _saved(each)[1],
    )
    environment.globals.update(more_crosses=MORE_CROSSES)
    return re.sub("\n{3,}", "\n\n", environment.get_template(template).render(**values)).strip() + "\n"


def _saved(what_if: WhatIf) -> tuple[str, str]:
    return saving_text(what_if.before.crossings, what_if.after.crossings)
