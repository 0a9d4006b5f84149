"""Weights of 4 bits and few rows of x, in CUDA C++: about as fast as the weights can be read.

Weights are the left operand of `mma.sync` m16n8k16, y^T = weight x^T: 16 rows of weights meet 8
rows of x, so that a single row of x costs no more than eight. What order a product adds k in is
free as long as both sides agree: each thread copies the 16 bytes of a row that it will multiply
itself, as they lie in memory, and reads the x that belongs to them.

    bytes of a word      b0 b1 b2 b3, a code in the low half (k) and the high (k + half a group)
    byte_perm            b0 0 b1 0: neighbours of x, as are b2 0 b3 0
    & 0x000f000f         the low codes; the high ones after a shift
    | 0x43004300         the bf16 numbers 128 + code (0x6400: f16, 1024 + code)
    - 136                value = code - 8, exact

A block has `TEAMS` teams, which take turns with the chunks of k; the `TEAM` warps of one share x.
Blocks of a cluster share a sum over k too. All add their parts through shared memory: no workspace,
no second launch, the same order at each call.
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

__device__ inline void meet(int number, int threads) {{ // some warps of the block
  asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
}}
__device__ inline void meet_cluster() {{
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}}
__device__ inline float held_by(unsigned block, const float *at) {{ // another of the cluster
  unsigned there;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}}
__device__ inline void wait_for_earlier() {{ // kernels; later ones may take what room there is
  asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
}}
"""

SOURCE = """
constexpr int TILES = {tiles}, TEAM = {team}, TEAMS = {teams}, PARTS = {parts}, STAGES = {stages};
constexpr int EIGHTS = {eights}, FIT = {fit}; // eights of x's rows, chunks of 128 in a group
constexpr int HELD = {held}, PITCH = 128 + 8; // rows of x in shared memory, and from one to the next
constexpr int WARPS = TEAM * TEAMS, THREADS = 32 * WARPS, TALL = 16 * TILES * TEAM;

struct Stage {{ // of a team
  uint4 codes[TILES][2][32 * TEAM];
  __align__(16) unsigned short x[HELD][PITCH];
}};

extern "C" __global__ void {cluster} __launch_bounds__(THREADS, {blocks})
w4a16(const unsigned short *x, const unsigned char *packed, const unsigned short *scales,
      unsigned short *y, long long rows, long long columns, long long depth) {{
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const int warp = threadIdx.x / 32, quad = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
  const int team = warp / TEAM, mate = threadIdx.x % (32 * TEAM);
  const int part = blockIdx.x % PARTS, corner = blockIdx.x / PARTS * TALL;
  const int chunks = depth / 128, each = (chunks + PARTS - 1) / PARTS;
  const int first = part * each + team, last = min(part * each + each, chunks);
  const int steps = (each + TEAMS - 1) / TEAMS; // the same for all teams
  Stage *ring = (Stage *)shared_memory + team * STAGES;

  // of 16 rows of weights a thread has those at `quad` and 8 on, of 8 rows of x that one
  const int mine = corner + warp % TEAM * TILES * 16 + quad, groups = chunks / FIT;
  const unsigned char *codes = packed + mine * (depth / 2) + place * 16;
  const unsigned short *step_at[TILES][2];
  for (int t = 0; t < TILES; t++)
    for (int i = 0; i < 2; i++)
      step_at[t][i] = scales + min((long long)mine + t * 16 + i * 8, columns - 1) * groups;
  wait_for_earlier();

  auto fetch = [&](int chunk, Stage &to) {{
    for (int t = 0; t < TILES; t++)
      for (int i = 0; i < 2; i++)
        copy_async(&to.codes[t][i][mate], codes + (t * 16 + i * 8) * (depth / 2) + chunk * 64,
                   chunk < last && mine + t * 16 + i * 8 < columns);
    const int low = chunk / FIT * (128 * FIT) + chunk % FIT * 64; // where k of low codes begins
    for (int i = mate; i < HELD * 16; i += 32 * TEAM)
      copy_async(&to.x[i / 16][i % 16 * 8],
                 x + min(i / 16, int(rows) - 1) * depth + low + i % 16 / 8 * (64 * FIT) + i % 8 * 8,
                 chunk < last);
    copies_commit();
  }};
  for (int i = 0; i < STAGES - 1; i++) fetch(first + i * TEAMS, ring[i]);

  unsigned short step[TILES][2];
  auto fetch_steps = [&](int chunk) {{
    for (int t = 0; t < TILES; t++)
      for (int i = 0; i < 2; i++) step[t][i] = step_at[t][i][min(chunk, chunks - 1) / FIT];
  }};
  fetch_steps(first);

  float sums[TILES][EIGHTS][4] = {{}};
  int slot = 0, free = STAGES - 1;
  for (int turn = 0; turn < steps; turn++) {{
    const int chunk = first + turn * TEAMS;
    copies_wait<STAGES - 2>();
    meet(1 + team, 32 * TEAM); // the copies of all are there, and all are done with the last stage
    fetch(chunk + (STAGES - 1) * TEAMS, ring[free]);
    float scale[TILES][2];
    for (int t = 0; t < TILES; t++)
      for (int i = 0; i < 2; i++) scale[t][i] = wide(step[t][i]);
    fetch_steps(chunk + TEAMS);

    const Stage &now = ring[slot];
    uint4 near[EIGHTS][2][2]; // x beside two words, in low halves and in high ones
    for (int e = 0; e < EIGHTS; e++)
      for (int two = 0; two < 2; two++)
        for (int high = 0; high < 2; high++)
          near[e][two][high] = *(const uint4 *)
              &now.x[min(8 * e + quad, HELD - 1)][high * 64 + place * 16 + two * 8];
#pragma unroll
    for (int t = 0; t < TILES; t++) {{
      uint4 held[2];
      for (int i = 0; i < 2; i++) held[i] = now.codes[t][i][mate];
      float found[EIGHTS][4] = {{}};
#pragma unroll
      for (int w = 0; w < 4; w++) {{
        unsigned pairs[4];
        for (int i = 0; i < 4; i++)
          pairs[i] = __byte_perm((&held[i % 2].x)[w], 0, i / 2 ? 0x4342 : 0x4140);
        for (int high = 0; high < 2; high++) {{
          unsigned a[4];
          for (int i = 0; i < 4; i++) a[i] = values_of(pairs[i] >> 4 * high);
          for (int e = 0; e < EIGHTS; e++)
            multiply(found[e], a, ((const uint2 *)&near[e][w / 2][high])[w % 2]);
        }}
      }}
      for (int e = 0; e < EIGHTS; e++)
        for (int i = 0; i < 4; i++) sums[t][e][i] += found[e][i] * scale[t][i / 2];
    }}
    slot = slot + 1 == STAGES ? 0 : slot + 1;
    free = free + 1 == STAGES ? 0 : free + 1;
  }}

  // parts of the sum: [team][row of x][row of weights]
  copies_wait<0>();
  __syncthreads();
  float *own = (float *)shared_memory;
  constexpr int SIZE = 8 * EIGHTS * TALL;
  for (int t = 0; t < TILES; t++)
    for (int e = 0; e < EIGHTS; e++)
      for (int i = 0; i < 4; i++)
        own[team * SIZE + (8 * e + place * 2 + i % 2) * TALL + (warp % TEAM * TILES + t) * 16 +
            i / 2 * 8 + quad] = sums[t][e][i];
  __syncthreads();
  auto store = [&](int at, float sum) {{
    const int column = corner + at % TALL;
    if (column < columns) y[at / TALL * columns + column] = narrow(sum);
  }};
  for (int at = threadIdx.x; at < rows * TALL; at += THREADS) {{
    float sum = 0;
    for (int i = 0; i < TEAMS; i++) sum += own[i * SIZE + at];
    if (PARTS > 1) own[at] = sum;
    else store(at, sum);
  }}
  if (PARTS > 1) {{
    meet_cluster();
    for (int at = part * THREADS + threadIdx.x; at < rows * TALL; at += PARTS * THREADS) {{
      float sum = 0;
      for (int i = 0; i < PARTS; i++) sum += held_by(i, own + at);
      store(at, sum);
    }}
    meet_cluster(); // nobody leaves while others read what it holds
  }}
}}
"""


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes:
        tiles: of 16 rows of weights that a warp has.
        team: warps that share x.
        teams: of a block; they share a sum.
        parts: blocks of a cluster that share a sum, 8 at most.
        stages: chunks under way for each team.
        blocks: that a processor is to hold at a time.
    """

    tiles: int
    team: int
    teams: int
    parts: int
    stages: int
    blocks: int = 1

    @property
    def tall(self) -> int:
        """Rows of weights of a block."""
        return 16 * self.tiles * self.team

    def shared(self, held: int, eights: int) -> int:
        """Bytes of shared memory."""
        stage = self.tall * 64 + held * 272
        return max(self.teams * self.stages * stage, self.teams * eights * 8 * self.tall * 4)


def config_for(rows: int) -> Config:
    """As seen on an H200; twice as much x leaves room for half of the chunks."""
    return Config(4, 1, 8, 1, 4)


@cache
def kernel(dtype: torch.dtype, config: Config, held: int, fit: int) -> CudaFunction:
    """For `held` rows of x, a power of two, and groups of `fit` chunks."""
    name, first, middle = _BITS[dtype]
    source = (PTX + SOURCE).format(
        type=name, first=first, middle=middle, tiles=config.tiles, team=config.team,
        teams=config.teams, parts=config.parts, stages=config.stages, blocks=config.blocks,
        eights=-(-held // 8), fit=fit, held=held,
        cluster=f"__cluster_dims__({config.parts}, 1, 1)" if config.parts > 1 else "",
    )  # fmt: skip
    return CudaFunction(source, "w4a16", config.shared(held, -(-held // 8)), is_early=True)


def w4a16(x: Tensor, packed: Tensor, scales: Tensor, config: Config | None = None) -> Tensor:
    """`x [..., k]` with 64 rows at most, `packed [n, k / 2]`, `scales [n, groups]`, dense.

    Groups are multiples of 128 weights.
    """
    (columns, groups), depth = scales.shape, x.shape[-1]
    y = x.new_empty((*x.shape[:-1], columns))
    rows = x.numel() // depth
    if not y.numel():
        return y
    cut = config or config_for(rows)
    blocks = -(-columns // cut.tall) * cut.parts
    run = kernel(x.dtype, cut, 1 << (rows - 1).bit_length(), depth // groups // 128)
    run(blocks, 32 * cut.team * cut.teams, x, packed, scales, y, rows, columns, depth)
    return y
