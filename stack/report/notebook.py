"""Display of a run in a notebook: its tables, and the text of each stage and kernel on demand."""

from __future__ import annotations

from stack.explore.dump import coverage_line, intensity, op_counts
from stack.explore.kernel_rows import source_text
from stack.explore.table import number, scaled
from stack.report.markup import Html, escaped, folded, joined, table, tag
from stack.run.record import Run, Stage

MOST = 40_000  # longest text, in characters, that is put into a notebook


def run_html(run: Run) -> str:
    """Returns the stages and kernels of a run as HTML tables, followed by their collapsed texts."""
    stages = [
        [
            s.name,
            f"{number(s.ms)} ms" if s.passes else None,
            s.ops if s.func is not None else None,
            s.groups if s.func is not None else None,
            s.passes,
        ]
        for s in run.records
    ]
    kernels = [
        [
            k.name,
            k.kind,
            scaled(k.flops),
            scaled(k.bytes, "B"),
            intensity(k.flops, k.bytes),
            op_counts(list(k.ops)),
            source_text(list(k.source)),
        ]
        for k in run.kernels
    ]
    parts = [
        tag("b", run.target or "a function"),
        escaped(f": {run.frontend} to {run.backend}"),
        table(["stage", "time", "ops", "groups", "passes"], stages, "stages"),
    ]
    if kernels:
        head = ["kernel", "kind", "operations", "bytes", "operations for each byte", "ops"]
        parts.append(table([*head, "source"], kernels, "kernels"))
    parts.append(tag("p", coverage_line(run.coverage)))
    parts.append(folded("texts of the stages", *(_stage(s) for s in run.records)))
    return joined(parts)


def _stage(stage: Stage) -> Html:
    # other compilers' texts are built only on demand, not for a table
    if stage.func is None:
        return tag("p", f"{stage.name}: print(run[{stage.name!r}].text)")
    text = stage.text
    cut = f"\n... {len(text) - MOST} characters more" if len(text) > MOST else ""
    return folded(stage.name, tag("pre", text[:MOST] + cut))
