"""Move slices of arrays into the stream that reads them, so that no copy is made."""

from __future__ import annotations

from collections.abc import Mapping

from stack.errors import RuleError
from stack.ir.builder import new_params, remade
from stack.ir.node import Block, Node, remade_block
from stack.ir.ops import is_view
from stack.ir.streaming import Tiled
from stack.ir.traits import is_part, is_stream, repeats
from stack.rewrite.engine import replace


def read_parts(block: Block) -> Block:
    """Returns the block with streams that slice their arguments themselves."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if is_stream(node):
            new = _reading(node)
            if new is not node:
                changed[node] = new
    return replace(block, changed)


def _reading(stream: Node) -> Node:
    chains = [_chain(arg) for arg in stream.args]
    parts = {chain[-1] for chain in chains if chain}
    # if most of an array is read elsewhere, or not at all, the part may be all that is computed
    chains = [chain if chain and _is_most(chain[-1], parts) else [] for chain in chains]
    if not any(chains):
        return stream
    args = [chain[-1].args[0] if chain else arg for chain, arg in zip(chains, stream.args)]
    kept = dict.fromkeys(args)
    states, correct, finish = stream.blocks
    count = len(finish.params) - len(args)
    fresh = new_params("p", [a.type for a in kept], finish.params[:count])
    own = dict(zip(kept, fresh, strict=True))
    blocks = [
        _rebuilt(
            block, start, own, dict(zip(block.params[len(start) :], chains, strict=True)), args
        )
        for block, start in ((states, ()), (finish, finish.params[:count]))
    ]
    new = Node("stream", list(kept), stream.attrs, stream.type, (blocks[0], correct, blocks[1]))
    try:
        Tiled(new, 0, 1)
    except RuleError:
        return stream  # a part along the streamed axis
    return new


def _chain(arg: Node) -> list[Node]:
    """Returns the views from a stream's argument back to the slice that is taken first; empty if
    there is no slice among them."""
    found: list[Node] = []
    while is_view(arg) and not repeats(arg):
        found.append(arg)
        arg = arg.args[0]
    while found and not is_part(found[-1]):
        found.pop()
    return found


def _is_most(part: Node, parts: set[Node]) -> bool:
    """True if `parts`, which are slices, together have at least half of the elements of the array
    that `part` is sliced from."""
    (whole,) = part.args
    sizes = [p.tensor.size for p in parts if p.args[0] is whole]
    total = sum(s for s in sizes if isinstance(s, int))
    return isinstance(whole.tensor.size, int) and 2 * total >= whole.tensor.size


def _rebuilt(
    block: Block,
    start: tuple[Node, ...],
    own: Mapping[Node, Node],
    chains: Mapping[Node, list[Node]],
    args: list[Node],
) -> Block:
    """Returns the block with the parameters `start` and `own`, where `own` are whole arrays. The
    views in `chains`, such as slices, that were outside are applied to them inside the block."""
    done: dict[Node, Node] = {p: p for p in start}
    for (old, chain), arg in zip(chains.items(), args, strict=True):
        made = own[arg]
        for view in reversed(chain):
            made = view.rebuilt((made,))
        done[old] = made
    done = remade(block.results, done)
    return remade_block(block, done, [*start, *own.values()])
