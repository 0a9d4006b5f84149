"""Checks a function against the op table. Runs after every pass."""

from __future__ import annotations

from stack.errors import RuleError, VerifyError
from stack.ir.bounds import LARGEST_LOCAL, Bounds
from stack.ir.equivalence import cached_by_class, facts_of
from stack.ir.func import Func
from stack.ir.lexer import MAX_NESTING
from stack.ir.node import Block, Node, deps
from stack.ir.ops import LEVELS, OPS, OpDef, find, infer_type
from stack.ir.printer import print_node
from stack.ir.tile_contract import breaches
from stack.ir.types import TupleType, Type

# ops whose blocks are at the tensor level, whatever the op's own level
_TENSOR_BLOCKS = ("fusion", "stream", "call", "while", "cond")


# kinds of ops whose type follows from their operands' types
_BY_TYPES = ("elementwise", "movement", "reduction", "contraction")


def _type(node: Node) -> Type:
    """The type that the op infers for a node; raises RuleError."""
    return infer_type(node.op, node.args, node.attrs, node.blocks, node.type)


_type_by_types = cached_by_class(_type)


def verify(func: Func) -> None:
    """Raises VerifyError, with node, rule and source lines, if the function breaks a rule."""
    where = f"function @{func.name}"
    if func.level not in LEVELS:
        levels = ", ".join(LEVELS)
        raise VerifyError(f"{where} is at level {func.level!r}, which is not one of {levels}")
    if func.body.is_open:
        raise VerifyError(f"{where} has loop variables for parameters")
    _Verifier(func.level, func.body, frozenset(), 1, Bounds()).block(func.body, where)
    for result in func.results:
        if isinstance(result.type, TupleType):
            raise VerifyError(f"{where} returns a tuple; pick items first")
    meshes = func.body.meshes
    if len(meshes) > 1:
        raise VerifyError(f"{where} uses several meshes: {', '.join(map(str, meshes))}")
    ranges: dict[str, str] = {}
    for s in func.symbols:
        text = f"{s.low}..{s.high} % {s.multiple}"
        if ranges.setdefault(s.name, text) != text:
            raise VerifyError(
                f"{where} has two sizes named {s.name!r}: {ranges[s.name]} and {text}"
            )


class _Verifier:
    """Checks one block against the rules of the IR. In an open block, such as a loop body, nodes
    may use values of the enclosing blocks.
    """

    def __init__(
        self,
        level: str,
        table: Block,
        around: frozenset[str],
        depth: int,
        bounds: Bounds,
        is_certain: bool = True,
    ) -> None:
        self.level = level
        self.table = table  # has the names and source lines
        self.around = around  # names of parameters of the enclosing blocks
        self.depth = depth
        self.bounds = bounds
        self.is_certain = is_certain  # True if the block runs for all values of its indices

    def fail(self, rule: str, node: Node) -> VerifyError:
        return VerifyError(rule, print_node(node, self.table), self.table.locs.get(node, ()))

    def block(self, block: Block, where: str, owner: Node | None = None) -> None:
        """Checks a block of node `owner`; `where` describes it in messages."""

        def fail(rule: str) -> VerifyError:
            return VerifyError(f"{where} {rule}", print_node(owner, self.table) if owner else "")

        if self.depth > MAX_NESTING:
            raise fail(f"is nested more than {MAX_NESTING} blocks deep")
        kinds = {p.op for p in block.params}
        if len(kinds) > 1 or not kinds <= {"param", "var"}:
            raise fail("takes parameters or loop variables, and nothing else")
        names = [str(p.attrs["name"]) for p in block.params]
        if len(set(names)) != len(names):
            raise fail(f"has two parameters of one name: {', '.join(names)}")
        shadowed = self.around.intersection(names)
        if shadowed:
            raise fail(f"names its variable {min(shadowed)!r} like one of a block around it")
        self.around = self.around.union(names)
        if not block.is_open:
            self._closed(block, where)
        for param in block.params:
            if param.type.sharding:
                self._places(param)
        for node in block.nodes:
            if not node.blocks or any(b.is_open for b in node.blocks):
                self.node(node)
                continue
            # with closed blocks, a node is checked once for its equivalence class
            facts, asked = facts_of(node), (_Verifier, self.level, self.depth, self.is_certain)
            if asked not in facts:
                self.node(node)
                facts[asked] = True

    def _closed(self, block: Block, where: str) -> None:
        if block.free:
            loose = ", ".join(sorted(str(v.attrs["name"]) for v in block.free))
            user = next((n for n in block.nodes if n.vars), block.results[0])
            raise self.fail(f"{where} is closed but uses the loop variable(s) {loose}", user)
        for node in block.nodes:
            if node.op == "param":  # not one of its own, which `nodes` omits
                user = next((n for n in block.nodes if node in deps(n)), node)
                rule = f"{where} uses %{node.attrs['name']}, a parameter of another block"
                raise self.fail(rule, user)

    def _places(self, node: Node) -> None:
        """Checks the shardings of a node's results: each must be possible for the result's shape,
        and only a `reshard` may make overlapping parts.
        """
        for type_ in node.types:
            if type_.sharding is not None:
                if type_.sharding.overlaps and node.op != "reshard":
                    raise self.fail(f"only a reshard makes parts that overlap, not {node.op}", node)
                try:
                    type_.sharding.check(type_.shape)
                except RuleError as error:
                    raise self.fail(str(error), node) from error

    def _tile_contract(self, kernel: Node) -> None:
        body = kernel.blocks[0]
        for found in breaches(kernel):
            text = print_node(found.node, body)
            raise VerifyError(found.rule, text, body.locs.get(found.node, ()))

    def _typed(self, node: Node, op: OpDef) -> None:
        """Checks that a node has the type that its op infers, and marks the node, so that it is not
        checked again.
        """
        try:
            inferred = _type_by_types(node) if op.kind in _BY_TYPES else _type(node)
        except RuleError as error:
            raise self.fail(str(error), node) from error
        if inferred != node.type:
            raise self.fail(f"the axis rule gives {inferred}, the node says {node.type}", node)
        node.is_typed = True

    def node(self, node: Node) -> None:
        """Checks a node against its op, then its blocks."""
        op = OPS.get(node.op) or find(node.op)
        if op is None:
            raise self.fail(f"unknown op {node.op!r}", node)
        if self.level not in op.levels:
            levels = ", ".join(level for level in LEVELS if level in op.levels)
            raise self.fail(f"{node.op!r} is no op of level {self.level!r}, but of {levels}", node)
        if not node.is_typed:
            self._typed(node, op)
        if node.type.sharding:
            self._places(node)
        if self.is_certain:
            outside = self.bounds.outside(node)
            if outside:
                raise self.fail(outside, node)
        if node.op == "alloc" and node.tensor.space == "local":
            if not isinstance(node.tensor.bytes, int) or node.tensor.bytes > LARGEST_LOCAL:
                raise self.fail(f"memory in local has at most {LARGEST_LOCAL} bytes", node)
        is_certain = self.is_certain and not node.attrs.get("limited")
        level = "tensor" if node.op in _TENSOR_BLOCKS else self.level
        if node.op == "kernel":
            level = str(node.attrs["level"])
        for block in node.blocks:
            if op.closed and block.is_open:
                raise self.fail(f"{node.op} takes closed blocks", node)
            table = self.table if block.is_open else block
            around = self.around if block.is_open else frozenset[str]()
            inner = _Verifier(level, table, around, self.depth + 1, self.bounds, is_certain)
            inner.block(block, f"block of {node.op}", node)
        if node.op == "kernel" and level == "tile":
            self._tile_contract(node)
