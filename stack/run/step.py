"""A training step: a program of losses and gradients, and what they make of the weights.

The parts of a step are known by name. The gradient of parameter `w` is `w.grad`, and what `w`
becomes is `w.next`; so passes can place them, and whoever runs the step knows what goes in again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from stack.errors import UsageError
from stack.ir.builder import Builder, param
from stack.ir.node import Block, Func, Node
from stack.ir.types import F32, TensorType

GRADIENT, NEXT = ".grad", ".next"
STATE = (".mean", ".square")  # what Adam keeps of each weight
RULES = ("sgd", "adam")


@dataclass(frozen=True)
class Optimizer:
    """Gradients are taken into new weights and new state, which are results in their place.

    The moments of Adam (Kingma and Ba, 2015) are parameters `w.mean` and `w.square`, the count of
    steps is `steps`.

    Attributes:
        rule: sgd or adam.
        weights: patterns of the parameters that the gradients are of, in order.
        results: how many of the results, the first, are no gradients.
        rate: the learning rate.
        mean, square: how much of the moments stays after a step.
        epsilon: what is added to the root of the second moment.
    """

    rule: str = "sgd"
    weights: tuple[str, ...] = ("*",)
    results: int = 1
    rate: float = 0.01
    mean: float = 0.9
    square: float = 0.999
    epsilon: float = 1e-8

    def step(self, func: Func) -> Func:
        """The whole step. Raises UsageError where gradients are not those of the weights."""
        if self.rule not in RULES:
            raise UsageError(f"rule {self.rule!r} is not one of {', '.join(RULES)}")
        gradients = func.results[self.results :]
        weights = self._weights(func, gradients)
        b = Builder()
        b.names.update(func.body.names)
        b.locs.update(func.body.locs)
        step = _Update(self, b)
        news = [step.updated(w, g) for w, g in zip(weights, gradients, strict=True)]
        results = [*func.results[: self.results], *news, *step.carried]
        return b.func(func.name, [*func.params, *step.state], results, func.level)

    def alone(self, types: Mapping[str, TensorType]) -> Func:
        """The update of these weights as a function of them and of their gradients."""
        weights = [param(name, type_) for name, type_ in types.items()]
        gradients = [param(f"gradient{i}", w.type) for i, w in enumerate(weights)]
        func = Func("update", Block([*weights, *gradients], gradients))
        return replace(self, weights=tuple(types), results=0).step(func)

    def _weights(self, func: Func, gradients: Sequence[Node]) -> list[Node]:
        found = [
            p
            for p in func.params
            if any(fnmatchcase(str(p.attrs["name"]), glob) for glob in self.weights)
        ]
        if [p.type for p in found] != [g.type for g in gradients]:
            raise UsageError(
                f"@{func.name} has {len(gradients)} gradients, and {', '.join(self.weights)} names"
                f" {len(found)} parameters: {', '.join(str(p.attrs['name']) for p in found)}"
            )
        return found


class _Update:
    """The update of one parameter after the other."""

    def __init__(self, options: Optimizer, b: Builder) -> None:
        self.options, self.b = options, b
        self.state: list[Node] = []
        self.carried: list[Node] = []
        self.count: Node | None = None

    def updated(self, weight: Node, gradient: Node) -> Node:
        """The new value of a weight."""
        b, name = self.b, str(weight.attrs["name"])
        b.loc = b.locs.get(gradient, ())
        b.names[gradient] = name + GRADIENT
        towards = gradient if self.options.rule == "sgd" else self._adam(name, gradient)
        new = b.sub(weight, b.mul(towards, self.options.rate))
        b.names[new] = name + NEXT
        return new

    def _adam(self, name: str, gradient: Node) -> Node:
        b, options = self.b, self.options
        mean = self._moment(name + STATE[0], gradient, options.mean)
        square = self._moment(name + STATE[1], b.mul(gradient, gradient), options.square)
        mean = b.div(mean, self._share(options.mean, mean))
        square = b.div(square, self._share(options.square, square))
        return b.div(mean, b.add(b.sqrt(square), options.epsilon))

    def _moment(self, name: str, value: Node, stays: float) -> Node:
        b = self.b
        old = param(name, value.type)
        new = b.add(b.mul(old, stays), b.mul(value, 1.0 - stays))
        self._carry(old, new)
        return new

    def _share(self, stays: float, like: Node) -> Node:
        """How much of a moment of ones would be there by now: 1 - stays ** steps."""
        b = self.b
        if self.count is None:
            old = param("steps", TensorType(F32, ()))
            self.count = b.add(old, 1.0)
            self._carry(old, self.count)
        gone = b.pow(b.const(stays, F32), self.count)
        return b.broadcast(b.sub(b.const(1.0, F32), gone), axes=(), type=like.type)

    def _carry(self, old: Node, new: Node) -> None:
        self.b.names[new] = str(old.attrs["name"]) + NEXT
        self.state.append(old)
        self.carried.append(new)


def carried(func: Func) -> dict[int, int]:
    """Which results of a step are the new values of which parameters, by number."""
    places = {str(p.attrs["name"]) + NEXT: i for i, p in enumerate(func.params)}
    names = [func.body.names.get(r, "") for r in func.results]
    return {i: places[name] for i, name in enumerate(names) if name in places}
