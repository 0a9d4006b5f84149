"""`stackc dump --mesh`: the stages of a program that is split over ranks."""

from __future__ import annotations

import argparse
from typing import Any

from stack.commands import common
from stack.commands.dump import output_folder, print_stages
from stack.errors import UsageError
from stack.explore.dump import describe
from stack.explore.sharding import collectives, shard_target, summary
from stack.explore.target import CommandTarget


def run(args: argparse.Namespace, target: CommandTarget) -> int:
    """Shows the stages of a program that is split over ranks."""
    if args.train or args.profile or not args.mesh:
        raise UsageError("--shard needs --mesh; neither works with --train or --profile")
    record = shard_target(target, common.settings_of(args), args.mesh, tuple(args.shard))
    if args.output:
        common.progress(f"wrote {record.save(output_folder(args.output))}")
    if args.json:
        local = record["partitioned"].func
        rows: list[Any] = collectives(local) if local is not None else []
        common.print_json({**record.manifest(), "collectives": rows})
        return 0
    print(f"{describe(record.manifest())}\n\n{summary(record)}")
    if args.all and not args.steps:
        print_stages(record)
    elif args.to:
        print(f"\n{record[args.to].text.rstrip()}")
    return 0
