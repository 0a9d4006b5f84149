"""Device functions of matmuls: of a warp (mma.sync), of a warpgroup (wgmma), and their operands.

PTX ISA, "Warp Level Matrix Instructions" and "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

import re

_MMA = """// two rows of accumulators, eight apart, += a @ b for 16 x 16 times 16 x 8
__device__ inline void
mma_{t}(float* low, float* high, const unsigned* a, const unsigned* b) {{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{t}.{t}.f32 {{%0, %1, %2, %3}},"
      " {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(low[0]), "+f"(low[1]), "+f"(high[0]), "+f"(high[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}"""

# name: (names of parts that it needs, text)
PARTS: dict[str, tuple[tuple[str, ...], str]] = {
    "shared_address": (
        (),
        """__device__ inline unsigned shared_address(const void* at) {
  return unsigned(__cvta_generic_to_shared(at));
}""",
    ),
    "load_matrices": (
        ("shared_address",),
        """// four 8 x 8 matrices; each lane gives the address of a row
__device__ inline void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)) : "memory");
}""",
    ),
    "load_matrices_turned": (
        ("shared_address",),
        """__device__ inline void
load_matrices_turned(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)) : "memory");
}""",
    ),
    "swizzled": (
        (),
        """// offset of an element in a swizzled matrix: the first line of all rows, then the second
// line, and so on; within a line, pieces of 16 bytes are permuted by the row number
template <unsigned rows, unsigned line, unsigned size>
__device__ inline unsigned swizzled(unsigned row, unsigned column) {
  constexpr unsigned pieces = line * size / 16, each = 16 / size;
  const unsigned turn = row * pieces / 8 % pieces;
  return (column / line * rows + row) * line + (column % line ^ turn * each);
}""",
    ),
    "corner_of": (
        (),
        """// offset in a swizzled matrix of a row that is a multiple of 8
template <unsigned rows, unsigned line>
__device__ inline unsigned corner_of(unsigned row, unsigned column) {
  return (column / line * rows + row) * line + column % line;
}""",
    ),
    "matrix_at": (
        ("shared_address",),
        """// descriptor of a matrix in shared memory with lines of so many bytes; parts of a row
// are `panel` bytes apart, if one instruction reads several
template <int bytes, int panel>
__device__ inline unsigned long long matrix_at(const void* first) {
  constexpr unsigned long long kind = bytes == 128 ? 1 : bytes == 64 ? 2 : 3;
  return shared_address(first) >> 4 | (unsigned long long)(panel >> 4) << 16 |
         (unsigned long long)(8 * bytes >> 4) << 32 | kind << 62;
}""",
    ),
    "reveal_shared": (
        (),
        """__device__ inline void reveal_shared() { // makes writes visible to tensor cores
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}""",
    ),
    "settle": (
        (),
        """// the compiler moves no use of the register across this
__device__ inline void settle(float& x) { asm volatile("" : "+f"(x) :: "memory"); }""",
    ),
    "groups_begin": (
        (),
        """__device__ inline void groups_begin() { // orders register accesses before wgmma
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void groups_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}""",
    ),
    "groups_wait": (
        (),
        """template <int pending> __device__ inline void groups_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory");
}""",
    ),
    **{f"mma_{t}": ((), _MMA.format(t=t)) for t in ("bf16", "f16")},
}

_GROUP = """// 64 rows of accumulators, two per thread, += a @ b for 64 x 16 times 16 x {n}
template <int turned_a, int turned_b>
__device__ inline void multiply_{n}_{t}(
    float* low, float* high, unsigned long long a, unsigned long long b, bool adds) {{
  asm volatile("{{ .reg .pred adds; setp.ne.b32 adds, %{adds}, 0;"
      " wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{t}.{t} {{{sums}}},"
      " %{a}, %{b}, adds, 1, 1, %{turned_a}, %{turned_b}; }}"
      : {registers}
      : "l"(a), "l"(b), "r"(int(adds)), "n"(turned_a), "n"(turned_b));
}}
template <int turned_b>
__device__ inline void multiply_{n}_{t}(
    float* low, float* high, const unsigned (&a)[4], unsigned long long b, bool adds) {{
  asm volatile("{{ .reg .pred adds; setp.ne.b32 adds, %{held_adds}, 0;"
      " wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{t}.{t} {{{sums}}},"
      " {{{held}}}, %{held_b}, adds, 1, 1, %{held_turned}; }}"
      : {registers}
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), "n"(turned_b));
}}"""
_GROUPS = re.compile(r"multiply_(\d+)_(bf16|f16)")


def multiply(kernel: str) -> list[str]:
    """Returns the C++ definitions of the warpgroup matmuls that the source of a kernel calls."""
    return [_group(n, t) for n, t in sorted({(int(n), t) for n, t in _GROUPS.findall(kernel)})]


def _group(columns: int, dtype: str) -> str:
    """Returns the C++ function of a warpgroup matmul with this number of result columns.

    Each thread has accumulators in two rows (`low` and `high`), in pairs of neighbouring columns.
    """
    count = columns // 2
    pairs = range(0, columns // 4, 2)
    return _GROUP.format(
        n=columns,
        t=dtype,
        sums=", ".join(f"%{i}" for i in range(count)),
        registers=", ".join(f'"+f"({r}[{j + e}])' for j in pairs for r in ("low", "high")
                            for e in range(2)),
        a=count, b=count + 1, adds=count + 2, turned_a=count + 3, turned_b=count + 4,
        held=", ".join(f"%{count + i}" for i in range(4)),
        held_b=count + 4, held_adds=count + 5, held_turned=count + 6,
    )  # fmt: skip
