"""All architectures by name. A library's are `library/name`.

A factory takes nothing and returns a model and its arguments: a module of torch, or a function of
JAX with its parameters as the first argument. Two ways to add some: `FACTORIES` of a file, which is
listed here; or any other file of this folder, each of whose public functions that return a
`tuple[nn.Module, ...]` and take nothing is one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from pathlib import Path

from strangers.check import Factory

LIBRARIES = ("transformers_models", "timm_models", "jax_models")
SUITE = {*LIBRARIES, "catalogue", "check", "jax_program", "report", "report_row", "torch_program"}


@functools.cache
def catalogue() -> dict[str, Factory]:
    """All factories. Those of torch are left out where torch is not installed."""
    found: dict[str, Factory] = {}
    files = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    for file in files:
        if file not in SUITE and not file.startswith("test_"):
            found |= _torch_factories(file)
    for file in LIBRARIES:
        found |= _of_library(file)
    return found


def _of_library(file: str) -> dict[str, Factory]:
    try:
        module = importlib.import_module(f"strangers.{file}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return {}
    library = file.removesuffix("_models")
    named: dict[str, Factory] = module.FACTORIES
    return {k if "/" in k else f"{library}/{k}": v for k, v in named.items()}


def _torch_factories(file: str) -> dict[str, Factory]:
    try:
        module = importlib.import_module(f"strangers.{file}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return {}
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and not inspect.signature(function).parameters
        and str(inspect.signature(function).return_annotation).startswith("tuple[nn.Module")
    }
