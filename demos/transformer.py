"""A transformer block from PyTorch and from JAX, all the way down.

Each factory here is a target for the command line, and serves both frontends with the same weights
and inputs:

    stackc dump demos/transformer.py:llama_block
    stackc dump demos/transformer.py:llama_block --frontend jax
    stackc compare demos/transformer.py:gpt2_block --with inductor,xla,tvm,eager
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from stack.demos import models, models_jax

Target = tuple[Any, tuple[Any, ...]]


def _check(frontend: str) -> None:
    if frontend not in ("torch", "jax"):
        raise ValueError(f"frontend must be 'torch' or 'jax', not {frontend!r}")


def llama_block(frontend: str = "torch", config: models.LlamaConfig = models.LLAMA) -> Target:
    """A Llama-style block: ``(module, (x,))`` for torch, ``(function, (params, x))`` for JAX."""
    _check(frontend)
    return (
        models.torch_llama_block(config)
        if frontend == "torch"
        else models_jax.jax_llama_block(config)
    )


def gpt2_block(frontend: str = "torch", config: models.GPT2Config = models.GPT2) -> Target:
    """A GPT-2 block: ``(module, (x,))`` for torch, ``(function, (params, x))`` for JAX."""
    _check(frontend)
    return (
        models.torch_gpt2_block(config)
        if frontend == "torch"
        else models_jax.jax_gpt2_block(config)
    )


def gpt2(
    n_layers: int = 2, frontend: str = "torch", config: models.GPT2Config = models.TINY_GPT2
) -> Target:
    """A small trainable GPT-2 language model that returns its loss.

    ``(module, (tokens, targets))`` for torch, ``(loss, (params, tokens, targets))`` for JAX.
    """
    _check(frontend)
    config = replace(config, layers=n_layers)
    return models.torch_gpt2(config) if frontend == "torch" else models_jax.jax_gpt2(config)


def main() -> int:
    """Walk both blocks down from both frameworks, check every stage, race the other compilers."""
    from stack.demos.story import tell

    return tell({"llama_block": llama_block, "gpt2_block": gpt2_block})


if __name__ == "__main__":
    sys.exit(main())
