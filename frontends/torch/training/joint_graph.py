"""AOTAutograd's partitioner, by our passes: imports the joint graph and partitions the function.

Torch wants two graphs back, so its own joint graph is cut at the values that `partition` keeps. The
backward pass as a whole becomes one node that calls an IR function (`calls_of`); so does a kept
value for which torch has no node. The importer of the two graphs inlines that function.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from stack import plugins
from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.frontends.torch.importer.border import physical_order, storage_root
from stack.frontends.torch.importer.graph import import_values
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE
from stack.frontends.torch.tensors.random_ops import draws, keep_draws
from stack.frontends.torch.training.saved_images import with_images
from stack.frontends.torch.training.saved_tensors import clones_input
from stack.ir import node as ir
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.rewrite.engine import copied
from stack.run.compile import walk_stages
from stack.run.record import Run, Stage

Modules = tuple[GraphModule, GraphModule]

# Records of the newest joint graphs, oldest first: stages `joint` and `partitioned`.
JOINTS: deque[Run] = deque(maxlen=512)


def partition_fn(
    balance: float,
    whole: bool,
    names: Callable[[GraphModule], Mapping[str, str]],
    target: str,
    leaves: Collection[int] = (),
) -> Callable[..., Modules]:
    """Returns a partitioner for AOTAutograd.

    Args:
        balance: flops that the target does in the time of one byte of memory traffic; 0 if a
            matmul always goes through memory.
        whole: if true, the forward pass saves only its inputs and values that cannot be
            recomputed.
        names: readable names for the placeholders of a graph.
        target: name of the graph in its record.
        leaves: positions of inputs that are leaves of autograd.
    """

    def partition(
        joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> Modules:
        keep_draws(joint.graph)
        _drop_unset_tangents(joint.graph, num_fwd_outputs, leaves)
        joint.graph.eliminate_dead_code()
        cut = _Cut(joint, num_fwd_outputs, names(joint))
        try:
            cut.decide(balance, whole, target)
        except StackError as error:
            run = Run(target, "torch")
            why = [f"cut by torch: {error}"]
            run.records.append(Stage("captured", make_text=_text(joint), comments=why))
            JOINTS.append(run)
            return _cut_by_torch(joint, inputs, num_fwd_outputs, whole, options)
        return with_images(cut.modules(), num_fwd_outputs) if balance else cut.modules()

    return partition


def _cut_by_torch(
    joint: GraphModule, inputs: Any, num_fwd_outputs: int, whole: bool, options: dict[str, Any]
) -> Modules:
    """Partitions with torch's min-cut, for a graph that our passes do not support."""
    if whole:
        for node in _before(
            private.pytree.arg_tree_leaves(*_outputs(joint.graph))[:num_fwd_outputs]
        ):
            if node.op == "call_function" and not draws(node.target):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                node.meta["ac_graph_id"] = 0  # as if one checkpoint contained all nodes
    # torch keeps a view for free, as strides; for us a transposed copy would be work
    with private.aot_settings(recompute_views=not whole):
        return min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
        )


def _drop_unset_tangents(graph: Graph, num_fwd_outputs: int, leaves: Collection[int]) -> None:
    """Removes gradients of leaves that are the tangent of an update in place.

    AOTAutograd returns the new value of an argument as a result, which has a tangent. A leaf may
    only be updated without gradients, so its tangent is always zero. As a gradient it would make
    `grad` of a parameter zeros, where eager has None; an optimizer would then decay the parameter.
    """
    placeholders = graph.find_nodes(op="placeholder")
    unset = {n for n in placeholders if _updated_input(n) in leaves}
    outs = private.pytree.arg_tree_leaves(*_outputs(graph))
    gradients = [None if o in unset else o for o in outs[num_fwd_outputs:]]
    graph.output_node().args = ([*outs[:num_fwd_outputs], *gradients],)


def _updated_input(tangent: Node) -> int | None:
    """Returns the position of the input whose updated value has this tangent."""
    output = getattr(tangent.meta.get("desc"), "output", None)
    return getattr(getattr(output, "mutated_input", None), "idx", None)


def _outputs(graph: Graph) -> Any:
    return graph.output_node().args


def _before(outputs: Iterable[Any]) -> set[Node]:
    """Returns the nodes that the outputs are computed from, directly or not, and the outputs."""
    found: set[Node] = set()
    pending = [n for n in outputs if isinstance(n, Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


class _Cut:
    """Cuts a joint graph of torch into forward and backward, where our partition pass decides."""

    def __init__(self, joint: GraphModule, num_fwd_outputs: int, names: Mapping[str, str]) -> None:
        self.joint = joint
        self.graph: Graph = joint.graph
        self.num_fwd_outputs = num_fwd_outputs
        self.names = names

    def decide(self, balance: float, whole: bool, target: str) -> None:
        """Import the graph and partition the function. Raises StackError if it is unsupported."""
        _check(self.graph)
        private.tag_recomputed(self.joint)
        outs = private.pytree.arg_tree_leaves(*_outputs(self.graph))
        results = list(dict.fromkeys(o for o in outs[: self.num_fwd_outputs] if _is_value(o)))
        placeholders = self.graph.find_nodes(op="placeholder")
        self.tangents = [n for n in placeholders if "tangents" in n.name]
        self.gradients = [
            o
            for o in dict.fromkeys(outs[self.num_fwd_outputs :])
            if _is_value(o) and storage_root(o) not in self.tangents
        ]
        if not self.gradients or not results:
            raise StackError("there is nothing to cut")
        func, self.values, self.why = import_values(
            self.joint, "joint", self.names, [*results, *self.gradients]
        )
        names = func.body.names  # a value that nothing reads has none
        cut = plugins.load("stack.passes", "partition")(
            results=len(results),
            tangents=len(self.tangents),
            balance=balance,
            recompute=tuple(dict.fromkeys(names[v] for v in self._checkpointed() if v in names)),
            inputs=whole,
        )
        run = Run(target, "torch")
        run.records.append(Stage("joint", func=func))
        stages = [("exchanged", "exchange")] if balance else []
        made = walk_stages(func, [*stages, ("partitioned", str(cut))], run)
        run.cover(func)
        JOINTS.append(run)
        calls = {n.attrs["name"]: n for n in made.nodes if n.op == "call"}
        self.backward = calls["backward"]
        self.forward = calls["forward"].blocks[0]
        self.given = [_of_forward(a, self.forward) for a in self.backward.args]

    def _checkpointed(self) -> list[ir.Node]:
        """Returns the IR values that the program wants recomputed, and those between them."""
        made: dict[bool, dict[ir.Node, None]] = {True: {}, False: {}}
        for node, value in self.values.items():
            inside = [v for v in private.pytree.tree_leaves(value) if isinstance(v, ir.Node)]
            made[private.is_recomputed(node)] |= dict.fromkeys(inside)
        others = made[False].keys() - made[True].keys()
        found = ir.topological(made[True], lambda v: v not in others)
        return [v for v in found if v.op not in ("param", "const")]

    def modules(self) -> Modules:
        """Returns torch's forward and backward graph."""
        known = self._known()
        last = self.graph.output_node()
        with self.graph.inserting_before(last):
            fresh = [v for v in self.given if v not in known]
            known |= zip(fresh, self._computed(fresh, known), strict=True)
            given = [known[v] for v in self.given]
            body = Func("backward", self.backward.blocks[0])
            found = self._call(body, given, [_computed(g) for g in self.gradients])
        made = dict(zip(self.gradients, found, strict=True))
        outs = private.pytree.arg_tree_leaves(*_outputs(self.graph))
        ours = range(self.num_fwd_outputs, len(outs))
        last.args = ([made.get(o, o) if i in ours else o for i, o in enumerate(outs)],)
        kept = [n for n in given if n.op != "get_attr" and "tangents" not in n.name]
        return private.cut_joint(self.joint, kept, self.num_fwd_outputs)

    def _known(self) -> dict[ir.Node, Node]:
        """Maps IR values of the forward pass to torch's nodes for them.

        Of several copies, the row-major one is taken. Of an input and its clone, the clone: the
        input may be overwritten before it is read.

        A value that only takes its shape from a tangent (a count of ones, for example) belongs to
        the forward pass in the IR, but to the backward pass in torch; it is left out.
        """
        known: dict[ir.Node, Node] = {}
        later = set(self.tangents)
        for node, value in self.values.items():
            if node.op != "placeholder" and not later.isdisjoint(node.all_input_nodes):
                later.add(node)
            elif isinstance(value, ir.Node):
                first = known.setdefault(value, node)
                is_turned = not _is_row_major(first) and _is_row_major(node)
                if clones_input(node) or (value.op != "param" and is_turned):
                    known[value] = node
        return known

    def _computed(self, wanted: Sequence[ir.Node], known: Mapping[ir.Node, Node]) -> list[Node]:
        """Adds a torch node for each forward value in `wanted`; returns these nodes, in order.

        Torch has no node for these values, so they are computed from values that have one
        (`known`).
        """
        if not wanted:
            return []
        read = [n for n in ir.topological(wanted, lambda n: n not in known)]
        given = list(dict.fromkeys(d for n in read for d in ir.deps(n) if d in known))
        b = Builder()
        inside = {n: param(f"p{i}", n.type) for i, n in enumerate(given)}
        results = copied(self.forward, wanted, inside, b)
        func = b.func("kept", list(inside.values()), results)
        like = self.gradients[0].meta["val"]
        return self._call(func, [known[n] for n in given], [_meta(n, like) for n in wanted])

    def _call(
        self, func: Func, given: Sequence[Node], metas: Sequence[Mapping[str, Any]]
    ) -> list[Node]:
        """Adds a node that calls an IR function, and one node per result."""
        call = self.graph.call_function(calls_of(func, self.why), tuple(given))
        call.meta = {"val": tuple(m["val"] for m in metas)}
        found: list[Node] = []
        for i, meta in enumerate(metas):
            item = self.graph.call_function(operator.getitem, (call, i))
            item.meta = dict(meta)
            found.append(item)
        return found


def calls_of(func: Func, why: Mapping[str, str]) -> Callable[..., Any]:
    """Returns the callable of a torch node that calls an IR function; `importer.graph` inlines it.

    `why` maps the opaque ops of the function to the reasons that they are opaque.
    """

    def call(*_: Any) -> Any:
        raise StackError(f"@{func.name} is compiled with the graph around it")

    call.__name__ = call.__qualname__ = func.name
    call.__module__ = "stack"
    call.why = why  # pyright: ignore[reportFunctionMemberAccess]
    call.func = func  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _of_forward(value: ir.Node, forward: ir.Block) -> ir.Node:
    """Resolves an argument of the backward pass to a value of the forward pass or a parameter."""
    if value.op == "call":
        return forward.results[0]
    return forward.results[int(value.attrs["index"])] if value.op == "item" else value


def _check(graph: Graph) -> None:
    """Raise StackError unless all values of a graph are real tensors of known sizes."""
    for node in graph.nodes:
        for value in private.pytree.tree_leaves(node.meta.get("val")):
            if value is None:
                continue
            if not isinstance(value, torch.Tensor):
                raise StackError(f"{node.name} is a {type(value).__name__}")
            if not all(isinstance(s, int) for s in value.shape):
                raise StackError(f"{node.name} has symbolic sizes")
            if value.is_complex():
                raise StackError(f"{node.name} is complex")


def _text(graph: GraphModule) -> Callable[[], str]:
    return lambda: graph.print_readable(print_output=False, colored=False)


def _is_row_major(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_contiguous()


def _is_value(output: Any) -> bool:
    return isinstance(output, Node) and isinstance(output.meta.get("val"), torch.Tensor)


def _computed(node: Node) -> Mapping[str, Any]:
    """Returns torch's metadata of a value, as for an array computed into memory of its own.

    A gradient that reads no tangent may be a view of a value saved for the backward pass.
    """
    value = node.meta["val"]
    is_dense = physical_order(value) is not None
    form = torch.preserve_format if is_dense else torch.contiguous_format
    return {**node.meta, "val": torch.empty_like(value, memory_format=form)}


def _meta(node: ir.Node, like: torch.Tensor) -> dict[str, Any]:
    """Returns torch's metadata for an IR value, on the device of `like`."""
    shape = [int(s) for s in node.shape]  # pyright: ignore[reportArgumentType]
    with like.fake_mode:  # pyright: ignore[reportAttributeAccessIssue]
        return {"val": torch.empty(shape, dtype=TORCH_DTYPE[node.dtype], device=like.device)}


__all__ = ["JOINTS", "calls_of", "partition_fn"]
