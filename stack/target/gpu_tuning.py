"""Tuned numbers of a GPU, one group for each kind of kernel: tile sizes and profitable thresholds.

A target file may override each of them. The values come from NVIDIA H100 and H200 and are in use
for all GPUs until somebody measures another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.target.fields import Tuning, tuned

TUNED = "tuned on an H100 or an H200"


@dataclass(frozen=True)
class GpuRows(Tuning):
    """Elementwise work, and reductions along rows or columns."""

    tile: int = tuned(1024, "elements", 1, 1 << 16, "of a tile of elementwise work", TUNED)
    gathered_tile: int = tuned(
        4096, "elements", 1, 1 << 16, "of a tile of gathered rows",
        f"{TUNED}: large tiles hide the latency of the indices",
    )  # fmt: skip
    transposed_side: int = tuned(
        64, "elements", 1, 256, "along both axes of a tile that transposes", TUNED
    )
    columns: int = tuned(128, "columns", 1, 4096, "of a tile of a column reduction", TUNED)
    walked_columns: int = tuned(
        64,
        "columns",
        1,
        4096,
        "of a program that walks down them with several states",
        "an H200: argmax, var, logsumexp of 4095 and 4096 columns, f32 and bf16",
    )
    long_column: int = tuned(
        4096,
        "elements",
        1,
        1 << 30,
        "of a column with several states, from which on tiles of 16-bit elements are larger",
        "an H200: argmax and var of columns of 512 to 131,104, bf16",
    )
    unrolled: int = tuned(
        16,
        "iterations",
        1,
        64,
        "at most, of a loop over a short row that is written out",
        "an H200: argmax of rows of 129 and 4095, bf16",
    )
    whole_column: int = tuned(
        256,
        "elements",
        1,
        4096,
        "of a column with several states, at most, that stays in registers",
        "an H200: argmax and var of columns of 127 to 512, f32 and bf16",
    )
    column_bytes: int = tuned(
        16384,
        "bytes",
        16,
        1 << 20,
        "of a tile of a column sum, at least",
        "an H200: sums of 512 columns, bf16",
    )
    row_elements: int = tuned(
        2048,
        "elements",
        32,
        1 << 14,
        "of a tile of several whole rows, and of each of its warps",
        "an H200: sum and var of rows of 129 and 512, f32 and bf16",
    )
    written_row_elements: int = tuned(
        1024,
        "elements",
        32,
        1 << 14,
        "of the same, if the rows are written, too",
        "an H200: softmax of rows of 129 and 512, f32",
    )
    column_elements: int = tuned(
        1024, "elements", 32, 1 << 14, "of a warp, in a tile of whole columns", TUNED
    )
    column_in_tile: int = tuned(
        16, "elements", 1, 4096, "of a reduced column, at most, for a tile with all of it", TUNED
    )
    thread_registers: int = tuned(
        255, "registers", 1, 255, "of 32 bits that a thread can have", "CUDA programming guide"
    )
    address_registers: int = tuned(
        24, "registers", 0, 255, "of a thread for other values than tiles", TUNED
    )
    whole_share: float = tuned(
        0.5, "", 0, 1, "of a thread's registers, for a row that stays in them", TUNED
    )
    prefetch_share: float = tuned(
        0.25, "", 0, 1, "of shared memory, at most, to prefetch a column reduction",
        TUNED,
    )  # fmt: skip
    warp_elements: int = tuned(512, "elements", 1, 1 << 16, "of a tile for each warp", TUNED)
    warps: int = tuned(16, "warps", 1, 64, "of a program, at most", TUNED)


@dataclass(frozen=True)
class GpuMixes(Tuning):
    """Column reductions fused with row-wise work, as in the gradients of a norm."""

    whole_tile: int = tuned(8192, "elements", 1, 1 << 16, "of a tile of whole rows", TUNED)
    part_tile: int = tuned(4096, "elements", 1, 1 << 16, "of a tile of parts of rows", TUNED)
    prefetch: int = tuned(3, "iterations", 1, 16, "of loads in flight", TUNED)


@dataclass(frozen=True)
class GpuScans(Tuning):
    """Running sums and products along an axis."""

    tile: int = tuned(4096, "elements", 1, 1 << 16, "of a tile", TUNED)
    lone_tiles: int = tuned(
        16, "tiles", 1, 1 << 16, "of a line, at most, if processors outnumber the lines", TUNED
    )
    python_launch: float = tuned(
        2.5e-4, "s", 0, 1, "of a kernel that Python launches within a call of XLA",
        "measured on an H200: 0.3 to 0.4 ms, some of it while other kernels run",
    )  # fmt: skip


@dataclass(frozen=True)
class GpuMatmuls(Tuning):
    """Matmuls with tensor cores, and matrix-vector products."""

    whole_depth: int = tuned(
        256, "elements", 16, 1 << 16, "of a contracted axis, at most, that a tile has as a whole",
        TUNED,
    )  # fmt: skip
    thread_sums: int = tuned(
        128, "registers", 1, 255, "of a thread for sums that are stored more than once",
        "chosen: half of the addressable ones",
    )  # fmt: skip
    raster_rows: int = tuned(
        8, "tiles", 1, 1 << 10, "in a column that share operands in the cache",
        TUNED,
    )  # fmt: skip
    stages: int = tuned(
        3, "stages", 1, 16, "of a tile whose rate was not measured", "chosen: as of measured tiles"
    )
    busy_ops: int = tuned(
        18, "operations", 1, 1 << 10,
        "of an epilogue on an element, from which sums are fewer", TUNED,
    )  # fmt: skip
    library_gain: float = tuned(
        0.93, "", 0.01, 1, "of our predicted time, below which a library is called", TUNED
    )
    reading_waits: float = tuned(
        2, "latencies", 0, 100, "of memory for an epilogue that reads another array", TUNED
    )
    hidden_waits: float = tuned(
        1 / 3, "latencies", 0, 100, "for an epilogue that overlaps with another tile", TUNED
    )
    strided_waits: float = tuned(
        2, "latencies", 0, 100, "of a matrix-vector product that sums along a strided axis",
        f"{TUNED}: elements move between threads",
    )  # fmt: skip
    line_programs: int = tuned(
        5, "programs", 1, 64, "of a matrix-vector product on a processor, at most", TUNED
    )


@dataclass(frozen=True)
class GpuStreams(Tuning):
    """Streams with matmuls, such as attention."""

    busy_ops: int = tuned(
        11, "operations", 1, 1 << 10,
        "on a score, from which a tile is smaller",
        TUNED,
    )  # fmt: skip
    long: int = tuned(
        2048, "elements", 1, 1 << 30, "of a streamed axis, from which tiles have twice the rows",
        TUNED,
    )  # fmt: skip
    narrow_step: int = tuned(
        32, "elements", 16, 1 << 10, "of a step that leaves registers for parts of f32 operands",
        TUNED,
    )  # fmt: skip
    whole_step: int = tuned(
        256, "elements", 16, 1 << 10, "of a streamed axis, at most, that is computed in one step",
        TUNED,
    )  # fmt: skip
    depth_block: int = tuned(
        64, "elements", 16, 1 << 10, "of a block of a contracted axis that no tile has as a whole",
        TUNED,
    )  # fmt: skip
    deep: float = tuned(
        4, "", 1, 1000,
        "times the streamed axis: a contracted axis from which few programs are too slow",
        "counted: the result of that matmul is written and read twice",
    )  # fmt: skip
    mask_block: int = tuned(
        64, "elements", 1, 1 << 10, "at least, along both axes of the tested blocks of a mask",
        "chosen: the rows and columns of a tile divide it",
    )  # fmt: skip
    mask_kernels: int = tuned(4, "launches", 0, 100, "of small kernels that test a mask", "counted")
    mask_share: float = tuned(
        0.1, "", 0, 1, "of a stream's time, at most, for testing its mask", "chosen"
    )


@dataclass(frozen=True)
class GpuParts(Tuning):
    """Reductions, matmuls and streams in two stages, so that all processors have programs."""

    launches: float = tuned(1.5, "launches", 0, 100, "of time for a dependent second kernel", TUNED)
    gain: float = tuned(0.8, "", 0.01, 1, "of the time of one stage, at most, for two", TUNED)
    reading_gain: float = tuned(
        0.96, "", 0.01, 1, "the same for streams that wait for memory", TUNED
    )
    line_gain: float = tuned(0.95, "", 0.01, 1, "the same for matrix-vector products", TUNED)
    padded: float = tuned(
        1.2, "", 1, 100, "relative time of a stage that masks the end of its parts", TUNED
    )
    least: int = tuned(16, "elements", 1, 1 << 20, "of a part, at least", TUNED)
    depth: int = tuned(
        256, "elements", 1, 1 << 20, "of a part of a contracted axis, at least", TUNED
    )
    lines: int = tuned(4, "lines", 1, 1 << 20, "of a column reduction in a part, at least", TUNED)
    unit: int = tuned(
        128, "elements", 1, 1 << 20, "that divide the parts of a stream with matmuls", TUNED
    )
    units: int = tuned(2, "units", 1, 1 << 20, "of a part of a stream, at least", TUNED)
    most: int = tuned(
        64, "parts", 1, 1 << 20, "of a stream, at most", f"{TUNED}: merging loads all of them"
    )


@dataclass(frozen=True)
class GpuLayouts(Tuning):
    """The threads of a program, and the elements that each of them has."""

    barrier_elements: int = tuned(
        16, "elements", 1, 1 << 10,
        "of a thread, from which barriers beat partial sectors", TUNED,
    )  # fmt: skip
    transposed_side: int = tuned(
        16, "elements", 1, 1 << 10,
        "along both axes of a tile, from which loads are coalesced",
        TUNED,
    )  # fmt: skip
    unrolled: int = tuned(
        8, "iterations", 1, 1 << 10, "whose code fits in the instruction cache of a core",
        TUNED,
    )  # fmt: skip
