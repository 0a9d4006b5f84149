"""Results of the collectives demo: fits, choices and their cost, as a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.ops.collectives import Network, build
from stack.ops.collectives.network import Link, fitted

Row = dict[str, Any]
STYLES = {"hand": "-o", "library": "-k", "peer": "--s", "schedule": ":"}
NAMES = {"hand": "ours", "library": "", "peer": "torch", "schedule": "messages"}


def judged(rows: Sequence[Row], message: Link | None, ranks: int) -> dict[str, Any]:
    """Adds the model's predictions to measured rows; returns rows, fitted links and choices.

    Schedules that run as messages are predicted from one message. A kernel over peer memory is
    predicted from a link that is fitted to all kernels whose schedule has one step.
    """
    links = _peer_links(rows, ranks) | ({"message": message} if message else {})
    predicted = [{**row, **_predicted(row, links, ranks)} for row in rows]
    told = {name: {"alpha_us": k.alpha * 1e6, "gb_per_s": _rate(k)} for name, k in links.items()}
    return {"fit": told, "choices": _choices(predicted), "rows": predicted}


def _rate(link: Link) -> float:
    return 1e-9 / link.beta if link.beta else 0.0


def _way(row: Row) -> tuple[str, str]:
    """Returns the link and the schedule (as names) whose model predicts a row's time."""
    if row["kind"] == "schedule":
        return "message", row["algorithm"]
    from stack.ops.collectives.peer_memory import WAYS

    return WAYS[row["collective"]][row["algorithm"]]


def _peer_links(rows: Sequence[Row], ranks: int) -> dict[str, Link]:
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row["kind"] != "hand" or "us" not in row:
            continue
        link, algorithm = _way(row)
        schedule = build(row["collective"], algorithm, ranks)
        if sum(any(not t.is_local for t in step) for step in schedule.steps) == 1:
            times = found.setdefault(link, {})
            times.setdefault(schedule.sent_bytes(row["bytes"]), []).append(row["us"] / 1e6)
    return {
        link: fitted({size: statistics.median(seconds) for size, seconds in times.items()})
        for link, times in found.items()
    }


def _predicted(row: Row, links: Mapping[str, Link], ranks: int) -> dict[str, float]:
    if row["kind"] not in ("schedule", "hand"):
        return {}
    link, algorithm = _way(row)
    schedule = build(row["collective"], algorithm, ranks)
    return {"predicted_us": Network(links[link]).seconds(schedule, row["bytes"]) * 1e6}


def _choices(rows: Sequence[Row]) -> list[Row]:
    """Compares the model's pick of an algorithm with the fastest one, by size, kind and collective.

    `best` is the fastest of the same kind; `first` also considers kernels and the library.
    `regret`: relative excess time of the pick over the best of its kind.
    """
    found: list[Row] = []
    measured = [r for r in rows if "us" in r]
    own = [r for r in measured if "predicted_us" in r]
    for kind, collective, size in dict.fromkeys(
        (r["kind"], r["collective"], r["bytes"]) for r in own
    ):
        at = {"collective": collective, "bytes": size}
        here = [r for r in own if r["kind"] == kind and at.items() <= r.items()]
        rest = [r for r in measured if r["kind"] != "schedule" and at.items() <= r.items()]
        picked, best = min(here, key=_by("predicted_us")), min(here, key=_by("us"))
        first = min([*here, *rest], key=_by("us"))
        found.append(
            {
                **at,
                "kind": kind,
                "picked": picked["algorithm"],
                "predicted_us": picked["predicted_us"],
                "measured_us": picked["us"],
                "best": best["algorithm"],
                "best_us": best["us"],
                "regret": picked["us"] / best["us"] - 1,
                "first": _name(first),
                "first_us": first["us"],
            }
        )
    return found


def _by(key: str) -> Callable[[Row], float]:
    return lambda row: row[key]


def _name(row: Row) -> str:
    return f"{NAMES[row['kind']]} {row['algorithm']}".strip()


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >> scale:
            return f"{size >> scale} {unit}"
    return str(size)


def markdown(made: Mapping[str, Any]) -> str:
    """Formats the tables of a measurement file."""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    fits = "; ".join(
        f"{name} {fit['alpha_us']:.1f} us + bytes / {fit['gb_per_s']:.3g} GB/s"
        for name, fit in made["fit"].items()
    )
    lines = [
        f"# Collectives on {made['device']}",
        "",
        f"{made['date']}, {versions}; `{made['command']}`. Microseconds (bus bandwidth, GB/s) of",
        "a call of bf16 on the slowest rank, median of rounds in which all systems alternate, in",
        f"replays of a CUDA graph on GPUs. Fits: {fits}.",
    ]
    rows = [r for r in made["rows"] if r["kind"] != "schedule"]
    for collective in dict.fromkeys(r["collective"] for r in rows):
        own = [r for r in rows if r["collective"] == collective]
        names = list(dict.fromkeys(map(_name, own)))
        choices = {
            c["bytes"]: c
            for c in made["choices"]
            if c["collective"] == collective and c["kind"] == "hand"
        }
        lines += ["", f"## {collective}", ""]
        head = ["bytes", *names, *(["picked", "best", "regret", "best of all"] if choices else [])]
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for size in sorted({r["bytes"] for r in own}):
            cells = {_name(r): r for r in own if r["bytes"] == size}
            told = [_cell(cells.get(name)) for name in names]
            if size in choices:
                c = choices[size]
                told += [c["picked"], c["best"], f"{c['regret']:.0%}", c["first"]]
            lines.append(f"| {' | '.join([_bytes(size), *told])} |")
    lines += ["", *_messages(made), *_regrets(made)]
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['us']:.1f} ({row['bus_gb_per_s']:.3g})" if "us" in row else row["note"]


def _messages(made: Mapping[str, Any]) -> list[str]:
    """Formats the table of schedules as messages, with the pick and the best."""
    own = [c for c in made["choices"] if c["kind"] == "schedule"]
    if not own:
        return []
    lines = [
        "## Schedules as point-to-point messages",
        "",
        "| collective | bytes | all, us | picked | best | regret |",
        "|---|---|---|---|---|---|",
    ]
    for c in own:
        here = [
            f"{r['algorithm']} {r['us']:.0f}"
            for r in made["rows"]
            if r["kind"] == "schedule"
            and (r["collective"], r["bytes"]) == (c["collective"], c["bytes"])
            and "us" in r
        ]
        head = f"| {c['collective']} | {_bytes(c['bytes'])} | {', '.join(here)} |"
        lines.append(f"{head} {c['picked']} | {c['best']} | {c['regret']:.0%} |")
    return [*lines, ""]


def _regrets(made: Mapping[str, Any]) -> list[str]:
    """Formats the accuracy of the model's choices and predictions, by kind."""
    lines = ["## Predictions", "", "| kind | picked the best | worst regret | median error |"]
    lines.append("|---|---|---|---|")
    for kind in dict.fromkeys(c["kind"] for c in made["choices"]):
        own = [c for c in made["choices"] if c["kind"] == kind]
        right = sum(c["picked"] == c["best"] for c in own)
        worst = max(c["regret"] for c in own)
        errors = [
            abs(r["predicted_us"] / r["us"] - 1)
            for r in made["rows"]
            if r["kind"] == kind and "us" in r
        ]
        middle = statistics.median(errors)
        lines.append(f"| {NAMES[kind]} | {right} of {len(own)} | {worst:.0%} | {middle:.0%} |")
    return lines


def plot(made: Mapping[str, Any], path: Path) -> None:
    """Plots bus bandwidth by size for each collective; thin lines are predictions."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    collectives = list(dict.fromkeys(r["collective"] for r in made["rows"]))
    figure, axes = plt.subplots(2, 2, figsize=(13, 9), sharex=True)
    for collective, axis in zip(collectives, axes.ravel(), strict=False):
        rows = [r for r in made["rows"] if r["collective"] == collective and "us" in r]
        for kind, algorithm in dict.fromkeys((r["kind"], r["algorithm"]) for r in rows):
            own = [r for r in rows if (r["kind"], r["algorithm"]) == (kind, algorithm)]
            sizes, bus = [r["bytes"] for r in own], [r["bus_gb_per_s"] for r in own]
            (line,) = axis.loglog(sizes, bus, STYLES[kind], markersize=3, label=_name(own[0]))
            if all("predicted_us" in r for r in own):
                fit = [r["bus_gb_per_s"] * r["us"] / r["predicted_us"] for r in own]
                axis.loglog(sizes, fit, color=line.get_color(), linewidth=0.5)
        axis.set_title(collective)
        axis.set_ylabel("bus bandwidth, GB/s")
        axis.set_xlabel("bytes of a rank's input")
        axis.legend(fontsize=7)
    figure.suptitle(f"{made['device']}, {made['date']} (thin lines: what the fits predict)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")
