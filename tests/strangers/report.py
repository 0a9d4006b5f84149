"""A table of all architectures.

    python tests/strangers/report.py [NAMES] [--jobs N] [--json FILE]

Each runs in a process of its own: one that crashes or hangs is a row. NAMES may have wildcards
(`timm/*`). Exits with 1 where an architecture is not right.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
# files of this folder have names of libraries; the folder above has the package that they form
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE.parent]
sys.path.insert(0, str(HERE.parent.parent))
COLUMNS = "{:38} {:9} {:>6} {:>6} {:>9} {:>9} {:>9} {:>8} {:>6}  {}"
HEAD = (
    "architecture", "result", "native", "train", "error", "eager's", "training", "seconds",
    "cpu", "",
)  # fmt: skip


def verdict(row: dict[str, Any]) -> str:
    """One word."""
    if row["skipped"]:
        return "skipped"
    if row["failed"]:
        return "failed"
    if not row["right"]:
        return "wrong"
    if not row["trained"]:
        return "untrained"
    return "fallback" if row["fallback"] else "ok"


def why(row: dict[str, Any]) -> str:
    """The text of a row besides its figures."""
    parts = [row["skipped"] or row["failed"]]
    if row["parts"] > 1:
        parts.append(f"{row['parts']} graphs")
    if row["leaving"]:
        parts.append(f"{row['leaving']} of {row['starts']} starts go another way")
    if row["fallback"]:
        parts.append(", ".join(f"{op} x{n}" for op, n in row["fallback"].items()))
    if row["captured"] and not row["failed"] and not row["right"]:
        parts.append(f"limit {row['limit']:.1e}")
    if row["worst"] and not row["trained"]:
        parts.append(row["worst"])
    return "; ".join(p for p in parts if p)


def line(row: dict[str, Any]) -> str:
    """A row of the table. `training`: the worst error as a share of what is allowed."""

    def share(part: int, whole: int) -> str:
        return f"{100 * part // whole} %" if whole else "-"

    return COLUMNS.format(
        row["name"],
        verdict(row),
        share(row["native"], row["ops"]),
        share(row["train_native"], row["train_ops"]),
        f"{row['error']:.1e}",
        f"{row['eager_error']:.1e}",
        f"{row['train_error']:.2g}",
        f"{row['seconds']:.1f}",
        f"{row['cpu']:.1f}",
        why(row),
    ).rstrip()


def counts(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The end of the report: numbers, then failures."""
    run = [r for r in rows if not r["skipped"]]
    yield f"{len(rows)} architectures, {len(rows) - len(run)} skipped, {len(run)} checked"
    for word, key in (
        ("captured", "captured"), ("fully native", "fully_native"), ("right", "right"),
        ("trained", "trained"), ("without fallback, right and trained", "ok"),
    ):  # fmt: skip
        yield f"  {word}: {sum(bool(r[key]) for r in run)} of {len(run)}"
    failures = [r for r in run if not r["ok"]]
    if failures:
        yield "not ok:"
        yield from (f"  {r['name']}: {verdict(r)}: {why(r)}" for r in failures)


def here(name: str) -> dict[str, Any]:
    """The row of one architecture, in this process."""
    from strangers.catalogue import catalogue
    from strangers.check import check

    return check(catalogue()[name], name).as_dict()


def apart(name: str, seconds: float, threads: int) -> dict[str, Any]:
    """The row of one architecture, in a process of its own."""
    from strangers.report_row import Report

    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "row.json"), Path(folder, "log.txt")
        command = [sys.executable, str(HERE), name, "--here", "--json", str(file)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        with log.open("w") as output:
            try:
                code = subprocess.run(
                    command,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    timeout=seconds,
                ).returncode
                ended = f"the process ended with {code}"
            except subprocess.TimeoutExpired:
                ended = f"no end after {seconds:.0f} seconds"
        if file.is_file():
            return json.loads(file.read_text())[0]
        lines = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
        last = f": {lines[-1].strip()}" if lines else ""
        return Report(name, failed=f"process: {ended}{last}").as_dict()


def chosen(patterns: Sequence[str]) -> list[str]:
    """Names of the catalogue; all without patterns."""
    from strangers.catalogue import catalogue

    names = list(catalogue())
    if not patterns:
        return names
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SystemExit(f"no architecture is called {pattern}; there are: {', '.join(names)}")
    return [n for n in names if any(fnmatch.fnmatch(n, p) for p in patterns)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="all where none is given")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--seconds", type=float, default=900, help="for each architecture")
    parser.add_argument("--here", action="store_true", help="run all in this process")
    parser.add_argument("--list", action="store_true", help="print the names only")
    given = parser.parse_args(argv)
    names = chosen(given.names)
    if given.list:
        print("\n".join(names))
        return 0
    rows: list[dict[str, Any]] = []
    print(COLUMNS.format(*HEAD).rstrip(), flush=True)
    threads = max(1, (os.cpu_count() or 1) // given.jobs)
    with ThreadPoolExecutor(given.jobs) as pool:
        if given.here:
            ready = map(here, names)
        else:
            waits = [pool.submit(apart, name, given.seconds, threads) for name in names]
            ready = (wait.result() for wait in as_completed(waits))
        for row in ready:
            rows.append(row)
            print(line(row), flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps(rows, indent=1))
    print("\n".join(counts(rows)))
    return int(any(not (r["ok"] or r["skipped"]) for r in rows))


if __name__ == "__main__":
    sys.exit(main())
