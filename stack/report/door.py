"""The door of this wing: a run as a web page, tables in a notebook, drawings of its graph."""

from __future__ import annotations

from stack.report.content import report_of
from stack.report.module_graph import write_graph
from stack.report.notebook import run_html
from stack.report.page import page
from stack.run.record import Run

__all__ = ["page_of", "tables_of", "write_graph"]


def page_of(run: Run) -> str:
    """Returns a run as one web page."""
    return page(report_of(run))


def tables_of(run: Run) -> str:
    """Returns the stages and kernels of a run as HTML tables."""
    return run_html(run)
