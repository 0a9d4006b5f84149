"""A transformer block from PyTorch and from JAX, through all stages.

Each factory here is a target of the command line, and serves both frontends with the same weights
and inputs:

    stackc dump demos/transformer.py:llama_block
    stackc dump demos/transformer.py:llama_block --frontend jax
    stackc compare demos/transformer.py:gpt2_block --with inductor,xla,tvm,eager
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

from stack.demos import models

Target = tuple[Any, tuple[Any, ...]]


def _made(frontend: str) -> Any:
    """Imports the models of one framework; the other need not be installed."""
    if frontend not in ("torch", "jax"):
        raise ValueError(f"frontend must be 'torch' or 'jax', not {frontend!r}")
    return importlib.import_module(f"stack.demos.models_{frontend}")


def llama_block(frontend: str = "torch", config: models.LlamaConfig = models.LLAMA) -> Target:
    """Returns a Llama-style block: ``(module, (x,))`` for torch, ``(fn, (params, x))`` for JAX."""
    return _made(frontend).make_llama_block(config)


def gpt2_block(frontend: str = "torch", config: models.GPT2Config = models.GPT2) -> Target:
    """Returns a GPT-2 block: ``(module, (x,))`` for torch, ``(function, (params, x))`` for JAX."""
    return _made(frontend).make_gpt2_block(config)


def gpt2(
    n_layers: int = 2, frontend: str = "torch", config: models.GPT2Config = models.TINY_GPT2
) -> Target:
    """Returns a small trainable GPT-2 language model that computes its loss.

    ``(module, (tokens, targets))`` for torch, ``(loss, (params, tokens, targets))`` for JAX.
    """
    return _made(frontend).make_gpt2(replace(config, layers=n_layers))


def main() -> int:
    """Walks both blocks through all stages in both frameworks; compares other compilers."""
    from stack.demos.story import tell

    return tell({"llama_block": llama_block, "gpt2_block": gpt2_block})


if __name__ == "__main__":
    sys.exit(main())
