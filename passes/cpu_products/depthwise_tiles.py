"""Tile sizes of depthwise convolutions: each lane is a channel, and windows overlap.

A tile loads a pixel once for all of its windows that cover it. So a tile has few vectors of
channels and many neighbouring windows. Registers hold their sums, the taps of a row and one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.node import Node
from stack.ir.traits import in_windows, unconverted
from stack.passes.tiling.contraction import Roles, operand_names
from stack.target import Cpu


def shared_tile(
    dot: Node, roles: Roles, lanes: Sequence[int], rows: int, cpu: Cpu
) -> tuple[int, int] | None:
    """Picks the rows and columns of a tile of a depthwise convolution's result with the least cost.

    Args:
        dot: the convolution, as a dot with windows.
        roles: the roles of its axes.
        lanes: the allowed numbers of columns.
        rows: the number of rows; 0 picks it.
        cpu: the target, whose registers hold a tile.

    Returns:
        Rows and columns. None if the windows of a row do not overlap.
    """
    image, names = unconverted(dot.args[roles.left]), operand_names(dot, roles.left)
    if not (roles.is_by_lane and in_windows(image)):
        return None
    at = image.attrs
    axis = names.index(roles.row) - at["axis"] if roles.row else -1
    if not 0 <= axis < len(at["window"]):
        return None
    count, by, apart = (at[name][axis] for name in ("window", "stride", "dilation"))
    taps, height, width = cpu.taps(count), roles.sizes[roles.row], roles.sizes[roles.lane]
    if by % apart or by // apart >= count:
        return None

    def cost(tile: tuple[int, int]) -> tuple[float, int]:
        rows, lanes = tile
        places = {row * by + tap * apart for row in range(rows) for tap in range(taps)}
        loads = (len(places) + taps) / taps
        tiles = -(-height // rows) * -(-width // lanes)
        return tiles * lanes * (rows + cpu.convolutions.load * loads), -lanes

    def most(lanes: int) -> int:
        vectors = max(1, lanes // cpu.lanes)
        return max(1, min(height, cpu.registers // vectors - taps - 1))

    tiles = [(r, n) for n in lanes for r in ([rows] if rows else range(1, most(n) + 1))]
    return min(tiles, key=cost)
