"""Tuned numbers of a CPU, one group for each kind of kernel: cache shares and thresholds.

A target file may override each of them. Most values come from one x86-64 server core with AVX-512
and are in use for all CPUs until somebody measures another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.target.fields import Tuning, tuned

SERVER = "tuned on x86-64 servers with AVX-512"


@dataclass(frozen=True)
class CpuRows(Tuning):
    """Rows, columns and scans: loops over contiguous elements."""

    line: int = tuned(
        16384, "elements", 1, 1 << 30, "of a row, at most, that one thread computes", SERVER
    )
    block: int = tuned(4096, "elements", 1, 1 << 30, "of a block of a longer row", SERVER)
    least_block: int = tuned(
        256, "elements", 1, 1 << 30, "of such a block, at least, if that divides the row", SERVER
    )
    part: int = tuned(
        1024, "elements", 1, 1 << 30, "of a row that is computed in one pass over memory",
        "chosen: 4 KiB of f32 stay in the first-level cache",
    )  # fmt: skip
    vector_registers: int = tuned(
        4, "registers", 1, 64, "of 32-bit floats in one vector of a row", SERVER
    )
    kept_share: float = tuned(
        1 / 16, "", 0, 1, "of the second-level cache for staged values of a row", SERVER
    )
    staged_share: float = tuned(
        1 / 4, "", 0, 1, "of the second-level cache for staged strided blocks", SERVER
    )
    staged_lines: int = tuned(
        8, "lines", 1, 1 << 10, "of a strided block, at least, for a profitable transpose", SERVER
    )
    deinterleaved_rows: int = tuned(
        4, "rows", 1, 1 << 10, "in a register, at least, for profitable deinterleaving", SERVER
    )
    stored_rows: int = tuned(
        512, "rows", 1, 1 << 20, "shorter than a vector that a thread stores at once", SERVER
    )
    invariant_share: float = tuned(
        0.75, "", 0, 1, "of the work, for which an independent axis moves inside",
        f"{SERVER}: with less, contiguous accesses are worth more",
    )  # fmt: skip


@dataclass(frozen=True)
class CpuParts(Tuning):
    """Long reductions of few rows in two stages, so that all threads have work."""

    each: int = tuned(8, "parts", 1, 1 << 10, "for each core", "chosen: enough to balance threads")
    least: int = tuned(
        16, "elements", 1, 1 << 20, "of a part, at least",
        "chosen: its result is written and read again",
    )  # fmt: skip
    threads: int = tuned(
        2, "threads", 1, 1 << 10, "for which two stages must be profitable",
        "chosen: more threads gain more",
    )  # fmt: skip
    gain: float = tuned(0.8, "", 0.01, 1, "of the time of one stage, at most, for two", SERVER)


@dataclass(frozen=True)
class CpuMatmuls(Tuning):
    """Matmuls with packed panels and register tiles."""

    accumulator_share: float = tuned(
        3 / 4, "", 0.01, 1, "of the registers for accumulators; the others have operands", SERVER
    )
    block_share: float = tuned(
        3 / 8, "", 0.01, 1, "of the second-level cache for a packed panel", SERVER
    )
    panel_share: float = tuned(
        1 / 4, "", 0.01, 1, "the same for matrix instructions, which prefetch a panel",
        SERVER,
    )  # fmt: skip
    kept_share: float = tuned(
        1 / 8, "", 0.01, 1, "the same if panels are packed only once",
        f"{SERVER}: narrow panels cost no more then",
    )  # fmt: skip
    sums_share: float = tuned(
        1 / 4, "", 0.01, 1, "of the second-level cache for partial sums between blocks", SERVER
    )
    rows_share: float = tuned(
        1 / 2, "", 0.01, 1, "of the second-level cache for rows that all panels multiply", SERVER
    )
    few_rows: int = tuned(
        32, "rows", 0, 1 << 20, "at most, for a panel that is read in place, if it can be", SERVER
    )
    slow_rows: int = tuned(
        4, "rows", 0, 1 << 20,
        "at most, that bf16 vector instructions multiply",
        "tuned on a server with AMX",
    )  # fmt: skip
    split_rows: int = tuned(
        64, "rows", 1, 1 << 20, "of a chunk of work, at least",
        f"{SERVER}: with fewer, packing takes longer than multiplying",
    )  # fmt: skip
    imbalance: float = tuned(
        0.1, "", 0, 100, "of the work for which threads may wait for the last one",
        "chosen",
    )  # fmt: skip
    panel_load: float = tuned(
        0.8, "multiplications", 0, 100, "in the time of a vector of a panel, from the second level",
        SERVER,
    )  # fmt: skip
    row_load: float = tuned(
        0.4, "multiplications", 0, 100, "in the time of an element of a row, from the first level",
        SERVER,
    )  # fmt: skip
    depth_columns: int = tuned(
        4, "columns", 1, 64, "with a tile of rows, in sums along the depth",
        SERVER,
    )  # fmt: skip
    column_cost: float = tuned(
        0.5, "rows", 0, 100, "of multiplications in the time of reading columns in place", SERVER
    )


@dataclass(frozen=True)
class CpuConvolutions(Tuning):
    """Convolutions as matmuls of windows."""

    tap_share: float = tuned(
        1 / 4, "", 0.01, 1, "of the registers for a row of taps of adjacent windows", SERVER
    )
    idle: float = tuned(
        1 / 4, "", 0, 100, "of the lanes with results, at most, may be idle beside them", SERVER
    )
    padded_taps: float = tuned(
        2, "windows", 1, 100, "of taps, at most, after padding to multiples of the stride",
        SERVER,
    )  # fmt: skip
    load: float = tuned(
        0.5, "multiplications", 0, 100, "in the time of a load from the first-level cache",
        "chosen",
    )  # fmt: skip
    copied_taps: int = tuned(
        16, "taps", 1, 1 << 20, "of a depthwise window, from which channels last pay",
        SERVER,
    )  # fmt: skip
    copied_reads: float = tuned(
        2, "reads", 0, 1 << 20, "of an element, from which a padded copy pays",
        SERVER,
    )  # fmt: skip


@dataclass(frozen=True)
class CpuStreams(Tuning):
    """Streams with matmuls, such as attention."""

    panel: int = tuned(
        64, "keys", 1, 1 << 20, "of a panel", f"{SERVER}: its scores stay in the first-level cache"
    )
    tiled_panel: int = tuned(
        128, "keys", 1, 1 << 20, "of a panel, if there are matrix instructions for its matmuls",
        "tuned on a server with AMX: rescaling is slow compared with such matmuls",
    )  # fmt: skip
    visible: float = tuned(
        0.55, "", 0, 1, "of the panels, if a mask of positions limits them",
        "chosen: a triangle and its border",
    )  # fmt: skip
    correction: float = tuned(
        4, "cycles", 0, 1000, "of a vector to rescale it",
        "counted: load, multiply, add and store",
    )  # fmt: skip
