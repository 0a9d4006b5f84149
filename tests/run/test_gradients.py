"""Programs of losses and gradients."""

from __future__ import annotations

import numpy as np
import pytest

from stack.run.gradients import gradients_of

torch = pytest.importorskip("torch")


def test_what_a_program_promises_holds_while_it_is_recorded() -> None:
    """`one_hot` refuses negative classes, which only a run knows."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 5, bias=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (self.line(x) * torch.nn.functional.one_hot(y, 5)).sum()

    x, y = torch.arange(6.0).reshape(2, 3), torch.tensor([4, 1])
    model = Model()
    func = gradients_of(model, (x, y))
    held = {"line.weight": model.line.weight.detach(), "x": x, "y": y}
    _, made = func.interpret(*(held[p.attrs["name"]].numpy() for p in func.params))[:2]
    assert np.array_equal(made, np.eye(5)[y.numpy()].T @ x.numpy())
