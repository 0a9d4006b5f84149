"""Modules, and programs that torch exported, as entries to trace or to compile."""

from __future__ import annotations

from typing import Any

import torch

from stack.run.frontend import Entry
from stack.wings import part_if_here


def entry(target: Any) -> Entry | None:
    """Returns a module, or a program that torch exported, as an entry; None for others."""
    facade = part_if_here("torch-module")
    if isinstance(target, torch.nn.Module):
        return Entry(target, signature=target.forward, facade=facade)
    if not isinstance(target, torch.export.ExportedProgram):
        return None
    module = target.module()
    args, kwargs = target.example_inputs or ((), {})
    example = None if kwargs else tuple(args)
    return Entry(module, example, signature=module.forward, facade=facade)
