"""`stackc dump --train`: the graphs of a training step."""

from __future__ import annotations

import argparse

from stack.calls.training import train_runs
from stack.commands import common
from stack.commands.dump import output_folder, print_stages
from stack.errors import UsageError
from stack.explore.dump import describe
from stack.explore.target import CommandTarget


def run(args: argparse.Namespace, target: CommandTarget) -> int:
    """Shows every graph of a training step; with -o, writes each to its own folder."""
    if args.to or args.profile:
        raise UsageError("--train shows whole graphs: leave out --to and --profile")
    found = train_runs(target, common.settings_of(args))
    for name, record in found.items():
        if args.output:
            folder = output_folder(args.output)
            common.progress(f"wrote {record.save(folder / name if len(found) > 1 else folder)}")
        if not args.json:
            print(describe(record.manifest()) + "\n")
        if args.all and not args.json:
            print_stages(record)
    if args.json:
        runs = {name: record.manifest() for name, record in found.items()}
        common.print_json({"schema": "stack.runs/1", "runs": runs})
    return 0
