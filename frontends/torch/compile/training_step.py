"""Runs one training step of a torch program through torch.compile, for its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stack.errors import UsageError
from stack.frameworks.torch_private import pytree
from stack.frontends.torch.compile.dynamo_backend import runs
from stack.frontends.torch.training.joint_graph import JOINTS


def train_runs(fn: Any, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
    """Returns records of the joint, forward and backward graphs; see `Frontend.train_runs`."""
    known, joints = len(runs()), len(JOINTS)
    torch.compiler.reset()
    compiled = torch.compile(fn, backend="stack", options=options)
    leaves = pytree.tree_map_only(torch.Tensor, _leaf, tuple(args))
    results = pytree.tree_leaves(compiled(*leaves))
    floats = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not floats:
        raise UsageError("no result depends on a float that could have a gradient")
    torch.autograd.backward(floats, [torch.ones_like(r) for r in floats])
    return [*list(JOINTS)[joints:], *runs()[known:]]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_() if copy.is_floating_point() else copy
