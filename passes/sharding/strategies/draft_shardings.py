"""Shardings under construction: strategies add mesh axes to dims of values, one after another.

The values of a training step are found by name, see `stack.passes.sharding.training_step`. The
updated parameter has the sharding of the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from stack.errors import RuleError, UsageError, unknown_name
from stack.ir.func import Func
from stack.ir.node import Block, Node, topological
from stack.ir.types import Type
from stack.mesh.meshes import Axes, MeshAxis, parse_mesh
from stack.mesh.sharding import OPEN, WHOLE, DimSharding, Sharding
from stack.passes.sharding.training_step import GRADIENT, NEXT, STATE


class DraftShardings:
    """The shardings of a function's values, those that it has and those that are added.

    Raises UsageError for an invalid mesh, or one that differs from the function's.
    """

    def __init__(self, func: Func, mesh: str) -> None:
        try:
            self.mesh = parse_mesh(mesh)
        except RuleError as error:
            raise UsageError(str(error)) from error
        if any(other != self.mesh for other in func.meshes):
            raise UsageError(f"@{func.name} is on mesh {func.meshes[0]}, not on {self.mesh}")
        self.old = func
        self.params = {str(p.attrs["name"]): p for p in func.params}
        self.values = {name: node for node, name in func.body.names.items()}
        self.dims: dict[Node, list[DimSharding]] = {}
        self.results: dict[Node, list[DimSharding]] = {}
        self.gathered: dict[Node, Sharding] = {}

    def axis(self, name: str) -> MeshAxis:
        """Returns an axis of the mesh. Raises UsageError with the existing ones."""
        try:
            return self.mesh.axis(name)
        except RuleError as error:
            raise UsageError(str(error)) from error

    def named(self, globs: Sequence[str]) -> dict[str, Node]:
        """Returns the parameters that patterns match.

        Raises UsageError for a pattern without a match.
        """
        found: dict[str, Node] = {}
        for glob in globs:
            own = {name: p for name, p in self.params.items() if fnmatchcase(name, glob)}
            if not own:
                raise unknown_name(f"@{self.old.name} has no parameter", glob, self.params)
            found.update(own)
        return found

    # ---- what is added

    def of(self, node: Node) -> list[DimSharding]:
        """Returns the sharding of each dim of a value so far, as a list that may be changed.
        Without an annotation, dims of parameters start whole, and those of other values open to
        propagation."""
        known = node.tensor.sharding
        start = WHOLE if node in self.old.params else OPEN
        return self.dims.setdefault(
            node, list(known.dims) if known is not None else [start] * node.tensor.rank
        )

    def split(self, node: Node, dim: int, axis: MeshAxis, name: str = "") -> None:
        """Splits a dim further. Raises UsageError if the value cannot be sharded so."""
        _extend(self.of(node), dim, axis)
        self.check(node, self.of(node), name)

    def split_weight(self, name: str, dim: int, axis: MeshAxis) -> None:
        """Splits a parameter, its gradient and its optimizer state further."""
        self.split_gradient(name, dim, axis)  # starts from the parameter's sharding
        self.split(self.params[name], dim, axis, name)
        self.split_state(name, dim, axis)

    def split_gradient(self, name: str, dim: int, axis: MeshAxis) -> None:
        """Splits the gradient of a parameter as the update reads it, if there is one."""
        if name + GRADIENT in self.values:
            _extend(self.read_at(self.values[name + GRADIENT], self.params[name]), dim, axis)

    def split_state(self, name: str, dim: int, axis: MeshAxis) -> None:
        """Splits the optimizer state of a parameter."""
        for tail in STATE:
            if name + tail in self.params:
                self.split(self.params[name + tail], dim, axis, name + tail)

    def read_at(self, node: Node, like: Node) -> list[DimSharding]:
        """Returns the sharding in which the optimizer's update reads `node`: that of the `reshard`
        that it is, or that of `like`."""
        said = node.tensor.sharding if node.op == "reshard" else None
        found = list(said.dims) if said is not None else list(self.of(like))
        return self.results.setdefault(node, found)

    def check(self, node: Node, dims: Sequence[DimSharding], name: str = "") -> None:
        """Raises UsageError, with the choices, if a value cannot be sharded so."""
        try:
            Sharding(self.mesh, tuple(dims)).check(node.shape)
        except RuleError as error:
            raise UsageError(
                f"%{name or self.old.body.names.get(node, node.op)}: {error}"
            ) from error

    def free_dim(self, node: Node, axis: MeshAxis) -> int | None:
        """Returns the dim that a mesh axis splits evenly in addition to the present axes, and of
        these the longest per rank; None if there is none."""
        sharding = Sharding(self.mesh, tuple(self.of(node)))
        local = [int(str(n)) for n in sharding.local_shape(node.shape)]
        fits = [d for d, n in enumerate(local) if n % axis.size == 0]
        return max(fits, key=lambda d: local[d], default=None)

    def gather(self, node: Node) -> None:
        """Records the current sharding of a parameter.

        All its readers but the update get it in this sharding, even if the parameter is split
        further later.
        """
        self.gathered.setdefault(node, Sharding(self.mesh, tuple(self.of(node))))

    # ---- the resulting function

    def func(self) -> Func:
        """Returns the function with these shardings."""
        self._carry()
        block = self.old.body
        readers = self._readers() if self.gathered else frozenset[Node]()
        done: dict[Node, Node] = {}
        whole: dict[Node, Node] = {}
        for node in (*block.params, *block.nodes):
            known = whole if node in readers else done
            args = [known.get(a, done[a]) for a in node.args]
            done[node] = Node(node.op, args, node.attrs, self._type(node), node.blocks)
            if node in self.gathered:
                whole[node] = _at(done[node], self.gathered[node])
            if node in self.results:
                made = done[node.args[0]] if node.op == "reshard" else done[node]
                done[node] = _at(made, Sharding(self.mesh, tuple(self.results[node])))
        return Func(self.old.name, _mapped(block, done), self.old.level)

    def _type(self, node: Node) -> Type:
        if node not in self.dims:
            return node.type
        return node.tensor.with_sharding(Sharding(self.mesh, tuple(self.dims[node])))

    def _carry(self) -> None:
        """Gives the updated parameter and the gradient the sharding of the parameter."""
        for name, param in self.params.items():
            if name + NEXT in self.values:
                self.results[self.values[name + NEXT]] = list(self.of(param))
            if name + GRADIENT in self.values:
                self.read_at(self.values[name + GRADIENT], param)

    def _readers(self) -> frozenset[Node]:
        """Returns all nodes that losses and gradients depend on; those of the optimizer's update
        are not among them."""
        grads = [node for name, node in self.values.items() if name.endswith(GRADIENT)]
        new = {node for name, node in self.values.items() if name.endswith(NEXT)}
        return frozenset(topological([*grads, *(r for r in self.old.results if r not in new)]))


def _extend(dims: list[DimSharding], dim: int, axis: MeshAxis) -> None:
    axes: Axes = (*dims[dim].axes, axis)
    dims[dim] = DimSharding(axes, False, dims[dim].priority)


def _at(node: Node, sharding: Sharding) -> Node:
    return Node("reshard", (node,), {}, node.tensor.with_sharding(sharding))


def _mapped(block: Block, done: Mapping[Node, Node]) -> Block:
    def names(held: Mapping[Node, str], nodes: Iterable[Node]) -> dict[Node, str]:
        return {done[n]: held[n] for n in nodes if n in held}

    locs = {done[n]: lines for n, lines in block.locs.items() if n in done}
    return Block(
        [done[p] for p in block.params],
        [done[r] for r in block.results],
        names(block.names, done),
        locs,
    )
