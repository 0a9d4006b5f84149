"""Weights of 4 bits and few rows of x, in CUDA C++: about as fast as the weights can be read.

Weights are the left operand of `mma.sync` m16n8k16, y^T = weight x^T: 16 rows of weights meet 8
rows of x, so that a single row of x costs no more than eight. Each thread copies the 16 bytes that
it will multiply itself, so that no copy waits for another thread: `stages` of them are always under
way. What order a product adds k in is free as long as both sides agree; this one adds in the order
in which codes come out of words without moving between threads, and x is stored in that order.

    bytes of a word    b0 b1 b2 b3,  a code in the low half (k) and the high (k + half a group)
    word & 0x000f000f  the low codes of b0 and b2, each in the last bits of 16
    | 0x43004300       the bf16 numbers 128 + code (0x6400: f16, 1024 + code)
    - 136              value = code - 8, exact

Blocks of a cluster share the sum over k of one tile, and add their parts by reading each other's
shared memory: no workspace, no second launch, the same order at each call.

What limits it, as seen on an H200 at 8192 x 8192 and one row: copies alone, no products, take 13.0
of 18.1 us in a form with other tiles, of which 8 are memory's; the cluster's start and its two
meetings take 3.4. At a depth of 28672 they count less: 2.7 TB/s. A subtraction saved with a product
of ones changes nothing. With more than 8 rows x takes the time of weights: Triton is as fast there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from stack.hosted.native import CudaFunction

Tensor = torch.Tensor
_BITS = {
    torch.bfloat16: ("bf16", "0x43004300", "0x43084308"),
    torch.float16: ("f16", "0x64006400", "0x64086408"),
}

PTX = """
__device__ inline unsigned shared_address(const void *at) {{
  return unsigned(__cvta_generic_to_shared(at));
}}

__device__ inline void copy_async(void *to, const void *from, bool is_there) {{ // else zeros
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}}
__device__ inline void copies_commit() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}
template <int pending> __device__ inline void copies_wait() {{
  asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}}

__device__ inline unsigned values_of(unsigned word) {{ // of the codes in bits 0 to 3 and 16 to 19
  unsigned made;
  asm("{{ .reg .b32 held; lop3.b32 held, %1, 0x000f000f, %2, 0xea; sub.rn.{type}x2 %0, held, %3; }}"
      : "=r"(made) : "r"(word), "n"({first}), "r"({middle}));
  return made;
}}

__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], const uint2 &b) {{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 {{%0, %1, %2, %3}},"
      " {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}}

__device__ inline float wide(unsigned short bits) {{
  float made;
  asm("cvt.f32.{type} %0, %1;" : "=f"(made) : "h"(bits));
  return made;
}}
__device__ inline unsigned short narrow(float x) {{
  unsigned short made;
  asm("cvt.rn.{type}.f32 %0, %1;" : "=h"(made) : "f"(x));
  return made;
}}

__device__ inline void meet() {{ // all threads of the cluster
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}}
__device__ inline float held_by(unsigned block, const float *at) {{ // another of the cluster
  unsigned there;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}}
"""

SOURCE = """
constexpr int WARPS = {warps}, STAGES = {stages}, PARTS = {parts}, TILES = {tiles}, SPAN = {span};
constexpr int EIGHTS = {eights}, FIT = {fit}; // eights of x's rows, chunks of a group
constexpr int TALL = 16 * TILES * WARPS;

extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(32 * WARPS, {blocks})
w4a16(const unsigned short *x, const unsigned char *packed, const unsigned short *scales,
      unsigned short *y, long long rows, long long columns, long long depth) {{
  __shared__ uint4 ring[STAGES][TILES][2][32 * WARPS];
  __shared__ __align__(16) unsigned short near[8 * EIGHTS][SPAN * 128 + 8], steps[TALL][SPAN];
  const int warp = threadIdx.x / 32, quad = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
  const int part = blockIdx.x % PARTS, corner = blockIdx.x / PARTS * TALL;
  const int chunks = depth / 128, each = (chunks + PARTS - 1) / PARTS;
  const int first = part * each, last = min(first + each, chunks);

  // of 16 rows of weights a thread has those at `quad` and 8 on, of 8 rows of x that one; what
  // lies beyond the last row is the last one again, and not stored
  const unsigned char *codes[TILES][2];
  const unsigned short *mine[EIGHTS], *step = steps[warp * TILES * 16 + quad];
  for (int t = 0; t < TILES; t++)
    for (int i = 0; i < 2; i++) {{
      const long long row = corner + (warp * TILES + t) * 16 + 8 * i + quad;
      codes[t][i] = packed + min(row, columns - 1) * (depth / 2) + place * 16;
    }}
  for (int e = 0; e < EIGHTS; e++) mine[e] = &near[min(8 * e + quad, int(rows) - 1)][place * 16];

  auto fetch = [&](int chunk) {{
    for (int t = 0; t < TILES; t++)
      for (int i = 0; i < 2; i++)
        copy_async(&ring[chunk % STAGES][t][i][threadIdx.x], codes[t][i] + chunk * 64,
                   chunk < last);
    copies_commit();
  }};
  for (int i = 0; i < STAGES - 1; i++) fetch(first + i);

  float sums[TILES][EIGHTS][4] = {{}};
  for (int start = first; start < last; start += SPAN) {{
    __syncthreads(); // all are done with what was there
    for (int i = threadIdx.x; i < rows * SPAN * 16; i += 32 * WARPS) {{
      const int row = i / (SPAN * 16), piece = i % (SPAN * 16);
      const int chunk = min(start + piece / 16, last - 1);
      // low codes of a chunk meet x here, high ones half a group on
      const int at = chunk / FIT * (128 * FIT) + chunk % FIT * 64 + piece % 16 / 8 * (64 * FIT);
      const uint4 eight = *(const uint4 *)(x + row * depth + at + piece % 8 * 8);
      // as codes come out of a word: 0 and 2, 1 and 3
      *(uint4 *)&near[row][piece * 8] = make_uint4(
          __byte_perm(eight.x, eight.y, 0x5410), __byte_perm(eight.x, eight.y, 0x7632),
          __byte_perm(eight.z, eight.w, 0x5410), __byte_perm(eight.z, eight.w, 0x7632));
    }}
    for (int i = threadIdx.x; i < TALL * SPAN; i += 32 * WARPS) {{
      const long long row = min((long long)corner + i / SPAN, columns - 1);
      const int chunk = min(start + i % SPAN, last - 1);
      steps[i / SPAN][i % SPAN] = scales[row * (chunks / FIT) + chunk / FIT];
    }}
    __syncthreads();

    for (int chunk = start; chunk < min(start + SPAN, last); chunk++) {{
      const int c = chunk - start;
      fetch(chunk + STAGES - 1);
      copies_wait<STAGES - 1>();
      float found[TILES][EIGHTS][4] = {{}};
#pragma unroll
      for (int two = 0; two < 2; two++) {{ // words, 8 neighbours of x
        uint4 held[2][EIGHTS];
        for (int high = 0; high < 2; high++)
          for (int e = 0; e < EIGHTS; e++)
            held[high][e] = *(const uint4 *)(mine[e] + c * 128 + high * 64 + two * 8);
        for (int t = 0; t < TILES; t++) {{
          uint2 words[2];
          for (int i = 0; i < 2; i++)
            words[i] = ((const uint2 *)&ring[chunk % STAGES][t][i][threadIdx.x])[two];
          for (int one = 0; one < 2; one++)
            for (int high = 0; high < 2; high++) {{
              unsigned a[4];
              for (int i = 0; i < 4; i++)
                a[i] = values_of((&words[i % 2].x)[one] >> (4 * high + i / 2 * 8));
              for (int e = 0; e < EIGHTS; e++)
                multiply(found[t][e], a, ((const uint2 *)&held[high][e])[one]);
            }}
        }}
      }}
      for (int t = 0; t < TILES; t++)
        for (int e = 0; e < EIGHTS; e++)
          for (int i = 0; i < 4; i++)
            sums[t][e][i] += found[t][e][i] * wide(step[(t * 16 + i / 2 * 8) * SPAN + c]);
    }}
  }}

  // parts of the sum: [row of x][row of weights]
  copies_wait<0>();
  __syncthreads();
  float *own = (float *)ring;
  for (int t = 0; t < TILES; t++)
    for (int e = 0; e < EIGHTS; e++)
      for (int i = 0; i < 4; i++)
        own[(8 * e + place * 2 + i % 2) * TALL + (warp * TILES + t) * 16 + i / 2 * 8 + quad] =
            sums[t][e][i];
  meet();
  for (int at = part * 32 * WARPS + threadIdx.x; at < rows * TALL; at += PARTS * 32 * WARPS) {{
    float sum = 0;
    for (int i = 0; i < PARTS; i++) sum += held_by(i, own + at);
    const long long row = at / TALL, column = corner + at % TALL;
    if (column < columns) y[row * columns + column] = narrow(sum);
  }}
  meet(); // nobody leaves while others read what it holds
}}
"""


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes:
        warps: of a block; each has `tiles` times 16 rows of weights.
        stages: chunks of weights under way for each thread.
        parts: blocks of a cluster that share a sum, 8 at most.
        tiles: of weights that meet the same x, which is read once for them.
        blocks: that a processor is to hold at a time.
        span: chunks of x and of scales that are in shared memory.
    """

    warps: int
    stages: int
    parts: int
    tiles: int = 2
    blocks: int = 1
    span: int = 4


def config_for(rows: int) -> Config:
    """As seen on an H200; twice as much x leaves room for half of the chunks."""
    return Config(4, 4, 8, tiles=1, blocks=6, span=8 if rows <= 8 else 4)


@cache
def kernel(dtype: torch.dtype, config: Config, eights: int, fit: int) -> CudaFunction:
    """For 8 `eights` rows of x, and groups of `fit` chunks."""
    name, first, middle = _BITS[dtype]
    source = (PTX + SOURCE).format(
        type=name, first=first, middle=middle, warps=config.warps, stages=config.stages,
        parts=config.parts, tiles=config.tiles, blocks=config.blocks, eights=eights, fit=fit,
        span=config.span,
    )  # fmt: skip
    return CudaFunction(source, "w4a16")


def w4a16(x: Tensor, packed: Tensor, scales: Tensor, config: Config | None = None) -> Tensor:
    """`x [..., k]` with 16 rows at most, `packed [n, k / 2]`, `scales [n, groups]`, dense.

    Groups are multiples of 128 weights.
    """
    (columns, groups), depth = scales.shape, x.shape[-1]
    y = x.new_empty((*x.shape[:-1], columns))
    rows = x.numel() // depth
    if not y.numel():
        return y
    cut = config or config_for(rows)
    blocks = -(-columns // (16 * cut.tiles * cut.warps)) * cut.parts
    run = kernel(x.dtype, cut, -(-rows // 8), depth // groups // 128)
    run(blocks, 32 * cut.warps, x, packed, scales, y, rows, columns, depth)
    return y
