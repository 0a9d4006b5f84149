"""Training steps: a program of losses and gradients, with the update of the weights.

Values of a step are known by name. The gradient of parameter `w` is `w.grad`, and its new value is
`w.next`. So passes can find them, and the caller knows which results are inputs of the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from stack.errors import UsageError
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.types import F32, TensorType

GRADIENT, NEXT = ".grad", ".next"
STATE = (".mean", ".square")  # Adam's state for each weight
RULES = ("sgd", "adam")


@dataclass(frozen=True)
class Optimizer:
    """Replaces gradients by new weights and new optimizer state among the results.

    The moments of Adam (Kingma and Ba, 2015) are parameters `w.mean` and `w.square`, the step count
    is `steps`.

    Attributes:
        rule: sgd or adam.
        weights: patterns of the parameters that have gradients, in order.
        results: number of results before the gradients.
        rate: the learning rate.
        mean, square: decay rates of the moments.
        epsilon: added to the root of the second moment.
    """

    rule: str = "sgd"
    weights: tuple[str, ...] = ("*",)
    results: int = 1
    rate: float = 0.01
    mean: float = 0.9
    square: float = 0.999
    epsilon: float = 1e-8

    def step(self, func: Func) -> Func:
        """Returns the whole training step: `func`, which computes gradients, followed by the update
        of its weights. Raises UsageError if the gradients do not match the weights.
        """
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
        """Returns a function that only updates these weights. Its parameters are the weights, their
        gradients and the state of the optimizer.
        """
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
    """Adds the optimizer's update of one weight after the other to a function, and collects the
    optimizer's state.
    """

    def __init__(self, options: Optimizer, b: Builder) -> None:
        self.options, self.b = options, b
        self.state: list[Node] = []
        self.carried: list[Node] = []
        self.count: Node | None = None

    def updated(self, weight: Node, gradient: Node) -> Node:
        """Adds the update of a weight by its gradient, and returns the new value of the weight."""
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
        """Returns the bias correction of a moment, 1 - stays ** steps, with the shape of `like`.
        `stays` is the moment's decay rate. The first call also advances the step count.
        """
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
    """Maps the index of each result `w.next` to the index of the parameter `w` that it replaces in
    the next step.
    """
    places = {str(p.attrs["name"]) + NEXT: i for i, p in enumerate(func.params)}
    names = [func.body.names.get(r, "") for r in func.results]
    return {i: places[name] for i, name in enumerate(names) if name in places}
