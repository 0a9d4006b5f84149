"""Inductor's code for `index_put` into an expanded tensor, without our code: run it alone.

Eager answers with a dense tensor. Inductor (torch 2.13) keeps the strides of 0, so that all that is
written falls on the same element: it prints strides (0, 0) and an error of 1.
"""

from __future__ import annotations

import torch


def program(values: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Values at places of zeros that are one number."""
    return torch.zeros(()).expand(64, 8).index_put((rows, columns), values)


def main() -> None:
    """Print the strides of both, and the largest difference."""
    rows = torch.arange(64)
    args = torch.ones(64), rows, rows % 8
    want, found = program(*args), torch.compile(program)(*args)
    print(f"torch {torch.__version__}: strides {found.stride()}, eager's {want.stride()},")
    print(f"largest difference {float((found - want).abs().max())}")


if __name__ == "__main__":
    main()
