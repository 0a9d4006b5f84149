"""The section of kernels: their table, and the roofline of a run that was timed."""

from __future__ import annotations

from stack.explore.dump import intensity
from stack.explore.kernel_rows import source_text
from stack.explore.layers import folded
from stack.explore.table import scaled
from stack.measure.kernels import floor_of
from stack.report.cells import code_link, seconds, spread_text
from stack.report.content import KernelView, Report
from stack.report.lines import Index, joined_numbers
from stack.report.markup import Html, figure, joined, table, tag
from stack.report.roofline import draw_roofline


def kernels_section(report: Report, index: Index) -> Html:
    """Returns the table of kernels in the order in which they run, and their roofline."""
    if not report.kernels:
        return Html("")
    times = [k.timing for k in report.kernels if k.timing is not None]
    total = sum(t.median for t in times)
    rows: list[list[object]] = []
    marks: list[dict[str, object]] = []
    for i, kernel in enumerate(report.kernels):
        named = [kernel.computes or None, code_link(report, 0, i)]
        rows.append([i + 1, *named, *_kernel_row(report, kernel, total)])
        marks.append({
            "class_": "pick", "tabindex": "0", "data_k": i, "id": f"kernel-{i + 1}",
            "data_s": joined_numbers(index.kernels[0][i]),
        })  # fmt: skip
    head = [
        "number",
        "computes",
        "kernel",
        "kind",
        "time",
        "spread",
        "share of time",
        "share of roof",
    ]
    head += [
        "operations",
        "bytes",
        "operations for each byte",
        "registers, spills",
        "module",
        "source",
    ]
    kept = [i for i in range(len(head)) if any(row[i] is not None for row in rows)]
    known = [[row[i] for i in kept] for row in rows]
    caption = "kernels in the order in which they run"
    parts = [table([head[i] for i in kept], known, caption, marks)]
    warned = [f"{k.name}: {k.warning}" for k in report.kernels if k.warning]
    parts.extend(tag("p", line, class_="noisy") for line in warned)
    if report.ceilings is not None and times:
        roof = draw_roofline(report.kernels, report.ceilings, report.dtype)
        caption = (
            "Roofline of this run, with the numbers of the table: circles are generated kernels,"
            " squares calls. Whiskers are quartiles; one without an end is cut off. Limits of the"
            f" machine: {report.ceilings.how}"
        )
        ceilings = [[k, v] for k, v in report.ceilings.as_dict().items() if not isinstance(v, dict)]
        parts.append(figure(roof, caption, table(["what", "value"], ceilings, "ceilings")))
    elif not times:
        parts.append(tag("p", "Times need a run: stackc report TARGET --profile", class_="faint"))
    return joined(parts)


def _kernel_row(report: Report, kernel: KernelView, total: float) -> list[object]:
    timing = kernel.timing
    shares: list[object] = [None, None, None, None]
    if timing is not None and timing.median:
        floor = None
        if report.ceilings is not None:
            least = floor_of(kernel, report.ceilings, report.dtype)
            floor = f"{100 * least / timing.median:.0f} %"
        shares = [
            seconds(timing.median),
            spread_text(timing.median, timing.spread, seconds(timing.spread)),
            f"{100 * timing.median / total:.0f} %",
            floor,
        ]
    held = kernel.resources
    spilled = f", {held['spills']} B spilled" if held.get("spills") else ""
    taken = f"{held['registers']}{spilled}" if "registers" in held else None
    work = [scaled(kernel.flops), scaled(kernel.bytes, "B"), intensity(kernel.flops, kernel.bytes)]
    return [
        kernel.kind,
        *shares,
        *work,
        taken,
        folded(kernel.modules) or None,
        source_text(list(kernel.source), 6),
    ]
