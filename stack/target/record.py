"""The description of a machine: a few numbers, each with a unit, a range and a source.

Peak rates are rates that a good kernel reaches, not those of a datasheet, because passes compare
times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.target.cpu_tuning import CpuConvolutions, CpuMatmuls, CpuParts, CpuRows, CpuStreams
from stack.target.fields import number
from stack.target.gpu_tuning import (
    GpuLayouts,
    GpuMatmuls,
    GpuMixes,
    GpuParts,
    GpuRows,
    GpuScans,
    GpuStreams,
)
from stack.target.mma import MMAS, Mma, Types

BARRIER_BYTES = 2 << 10  # shared memory for barriers and for data of the compilers
LINE = 64  # bytes of a cache line of a CPU
FIRST_LEVEL = 32 << 10  # minimum size of a CPU's first-level cache, in bytes
NO_SOURCES: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Target:
    """The common description of CPUs and GPUs.

    Attributes:
        name: its name on the command line.
        title: the machine in words.
        arch: the assembler's name: "sm_90", or a CPU that LLVM knows; "native" is this CPU.
        features: additional instruction set features; for a CPU, LLVM's names.
        sources: the source of each number: a datasheet, calibrated here, or chosen and why.
    """

    name: str
    title: str
    arch: str
    features: tuple[str, ...] = ()
    launch: float = number("s", 1e-8, 1e-2, "cost of one more kernel besides its work")
    memory_rate: float = number("B/s", 1e8, 1e15, "memory, reads and writes counted")
    cache_rate: float = number("B/s", 1e8, 1e16, "the second-level cache")
    cache_bytes: int = number("B", 1 << 14, 1 << 40, "size of the second-level cache")
    registers: int = number("", 8, 1 << 24, "32-bit registers of a processor; vectors of a core")
    f32_rate: float = number("flop/s", 1e8, 1e17, "products of 32-bit floats, without tensor cores")
    bf16_rate: float = number("flop/s", 1e8, 1e18, "products of 16-bit floats, summed in f32")
    sources: Mapping[str, str] = field(default_factory=lambda: NO_SOURCES, compare=False)


# kinds of matmuls with their own measured tiles
PRODUCTS = {
    "half": "of 16-bit floats",
    "single": "of 32-bit floats, multiplied exactly",
    "fma": "without tensor cores, as of 32-bit floats; of wider types in less depth",
    "tf32": "of 32-bit floats that are TF32 values",
    "rounding": "of 32-bit floats that the kernel rounds to TF32",
    "reading": "of 16-bit floats, with an epilogue that reads another array and holds many values",
    "tail": "of 16-bit floats, for the tail after the full waves of a large tile",
    "library": "of 16-bit floats, by a library, besides those of `half`",
}


@dataclass(frozen=True)
class TileRate:
    """The measured rate of a matmul with a tile.

    Attributes:
        product: one of `PRODUCTS`.
        schedule: the tile, as blocks of m, n and k, with warps and stages.
        rate: rate of a full processor, relative to `Gpu.bf16_rate`.
    """

    product: str
    schedule: str
    rate: float


@dataclass(frozen=True, kw_only=True)
class Gpu(Target):
    """A GPU. Its rates are totals over all processors.

    Attributes:
        tiles: tiles for which compilers generate fast code, with their rates; some for each kind of
            matmul.
        rows, mixes, scans, matmuls, streams, parts, layouts: tuned numbers for kinds of kernels.
        shared: True if other kernels, such as those of collectives, hold some processors meanwhile.
    """

    processors: int = number("", 1, 1 << 14, "multiprocessors, each with its own shared memory")
    threads: int = number("", 32, 1 << 14, "threads of a block, at most")
    shared_bytes: int = number("B", 1 << 12, 1 << 24, "shared memory of a block, at most")
    latency: float = number("s", 1e-8, 1e-3, "a wait for memory that is busy")
    stream_share: float = number("", 0.01, 1, "of bf16_rate, in a stream, with softmax in between")
    few_rows_share: float = number("", 0.01, 1, "of a product's rate, in a stream of few rows")
    readers: float = number("", 0.1, 64, "streams of a processor that reach memory_rate together")
    slots: int = number("", 1, 64, "streams of a processor that read at a time")
    reducers: int = number("", 1, 64, "reductions of a processor that reach memory_rate together")
    lone_share: float = number("", 0.01, 1, "of its rate that a tile for two reaches alone")
    across_share: float = number("", 0.01, 1, "of a product's rate with strided lines, in TF32")
    piece_share: float = number("", 0.01, 1, "of memory_rate, for pieces shorter than a line")
    element_share: float = number("", 0.001, 1, "of a product's rate that is read by elements")
    tiles: tuple[TileRate, ...] = ()
    rows: GpuRows = field(default=GpuRows())
    mixes: GpuMixes = field(default=GpuMixes())
    scans: GpuScans = field(default=GpuScans())
    matmuls: GpuMatmuls = field(default=GpuMatmuls())
    streams: GpuStreams = field(default=GpuStreams())
    parts: GpuParts = field(default=GpuParts())
    layouts: GpuLayouts = field(default=GpuLayouts())
    shared: bool = field(default=False)

    @property
    def tile_registers(self) -> int:
        """The number of a processor's 32-bit registers that may hold the values of tiles: half of
        them. The others hold operands and indices.
        """
        return self.registers // 2

    @property
    def operand_bytes(self) -> int:
        """Bytes of shared memory that may hold operands of a block: all but those for barriers."""
        return self.shared_bytes - BARRIER_BYTES

    @property
    def stream_rate(self) -> float:
        """Matmul operations per second in a stream, with softmax and corrections in between."""
        return self.stream_share * self.bf16_rate

    @property
    def balance(self) -> float:
        """Matmul operations that a stream computes in the time of one byte of memory traffic:
        recomputing a value pays below this number of operations per byte.
        """
        return self.stream_rate / self.memory_rate


@dataclass(frozen=True, kw_only=True)
class Cpu(Target):
    """A CPU. Its rates are those of one core.

    Attributes:
        refused: a feature that it has but this process may not use, in words.
        rows, parts, matmuls, convolutions, streams: tuned numbers for kinds of kernels.
    """

    cores: int = number("", 1, 1 << 12, "threads to divide the work among")
    clock: float = number("Hz", 1e7, 1e11, "cycles, under vector work")
    vector_bytes: int = number("B", 4, 1 << 12, "a vector register")
    score_cycles: float = number(
        "", 0.5, 1000, "cycles of a vector between the products of attention"
    )
    fetch: float = number("s", 1e-9, 1e-3, "taking a piece of work from the shared queue")
    refused: str = field(default="", compare=False)
    rows: CpuRows = field(default=CpuRows())
    parts: CpuParts = field(default=CpuParts())
    matmuls: CpuMatmuls = field(default=CpuMatmuls())
    convolutions: CpuConvolutions = field(default=CpuConvolutions())
    streams: CpuStreams = field(default=CpuStreams())

    @property
    def lanes(self) -> int:
        """32-bit floats in a register."""
        return self.vector_bytes // 4

    @property
    def chunk(self) -> int:
        """The number of elements of a row that a kernel processes at a time: some vector registers
        of 32-bit floats.
        """
        return self.rows.vector_registers * self.lanes

    @property
    def kept_bytes(self) -> int:
        """The part of the second-level cache, in bytes, that a kernel may use to stage values of a
        row.
        """
        return int(self.rows.kept_share * self.cache_bytes)

    @property
    def staged_bytes(self) -> int:
        """Bytes of the second-level cache that staged blocks of strided operands may use."""
        return int(self.rows.staged_share * self.cache_bytes)

    @property
    def sums(self) -> int:
        """The number of vector registers that may hold the accumulators of a matmul; the others
        hold operands.
        """
        return int(self.matmuls.accumulator_share * self.registers)

    def most_rows(self, vectors: int) -> int:
        """The maximum number of rows of a matmul's register tile, with `vectors` accumulators in
        each row, that leaves registers for one row of operand vectors.
        """
        return max(1, min(self.sums // vectors, (self.registers - 1) // vectors - 1))

    def taps(self, row: int) -> int:
        """The number of window taps that a convolution keeps in registers at a time, of a row of
        `row` taps.
        """
        return min(row, int(self.convolutions.tap_share * self.registers))

    def sums_beside(self, rows: int) -> int:
        """The number of accumulator vectors in each of the `rows` rows of a matmul's register tile:
        a power of two.
        """
        return 1 << max(self.sums // rows, 1).bit_length() - 1

    def mmas(self, types: Types) -> list[Mma]:
        """The CPU's matrix instructions for these element types of operands and accumulator,
        fastest first.
        """
        return [m for m in MMAS if m.feature in self.features and m.types == types]

    def mma(self, types: Types, rows: int, lanes: int, depth: int) -> Mma | None:
        """The CPU's fastest matrix instruction that computes a matmul tile of this size without
        remainder; None if there is none.
        """
        return next((m for m in self.mmas(types) if m.divides(rows, lanes, depth)), None)


KINDS: dict[str, type[Gpu] | type[Cpu]] = {"gpu": Gpu, "cpu": Cpu}


def kind_of(target: Target) -> str:
    """The kind of a target in its file: "gpu" or "cpu"."""
    return "gpu" if isinstance(target, Gpu) else "cpu"
