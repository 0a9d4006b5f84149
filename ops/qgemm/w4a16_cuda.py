"""Matmuls of 4-bit weights with few rows of x, in CUDA C++, on tensor cores.

Weights are the left operand of `mma.sync` m16n8k16, y^T = weight x^T: 16 rows of weights are
multiplied with 8 rows of x, so that eight rows of x cost the same as one. The order of k within a
matmul is arbitrary, as long as both sides use the same. So x is loaded in the order in which codes
are unpacked.

    bytes of a word      b0 b1 b2 b3, two codes each
    byte_perm            b0 0 b1 0: neighbours of x, as are b2 0 b3 0
    & 0x000f000f         the low codes; the high ones after a shift
    | 0x43004300         the bf16 numbers 128 + code (0x6400: f16, 1024 + code)

The offset is subtracted once per group: sum (128 + code - middle) x = sum (128 + code) x - middle
sum x. The sum of x comes from a matmul with ones, which serves all tiles.

Codes of a table are looked up by byte, two at a time. Each lane has a table of its own, so that no
two lanes access one bank.

A block has `TEAMS` teams, which process chunks of k in turn; the `TEAM` warps of a team share x.
The blocks of a cluster also share a sum over k. All parts are added through shared memory, without
a workspace or a second launch, and in the same order at each call.

The kernel is bound by copies to shared memory: alone they take 13.9 of 16.0 us at 8192 x 8192 and
one row on an H200, where loads into registers take 9.3; see README.md.
"""

from __future__ import annotations

from functools import cache

import torch

from stack.hosted.native import CudaFunction
from stack.ops.qgemm.w4a16_cut import CHUNK, Config, Form, config_for, held_of

Tensor = torch.Tensor
# two numbers with a code of 0 in their last bits; two ones
_BITS = {
    torch.bfloat16: ("bf16", "0x43004300", "0x3f803f80"),
    torch.float16: ("f16", "0x64006400", "0x3c003c00"),
}

PTX = """
__device__ inline unsigned shared_address(const void *at) {{
  return unsigned(__cvta_generic_to_shared(at));
}}

__device__ inline void copy_async(void *to, const void *from, bool is_there) {{ // or zeros
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}}
__device__ inline void copies_commit() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}
template <int pending> __device__ inline void copies_wait() {{
  asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}}

// two numbers with the codes of bits 0 to 3 and 16 to 19 in their last bits
__device__ inline unsigned raised(unsigned word) {{
  unsigned made;
  asm("lop3.b32 %0, %1, 0x000f000f, {first}, 0xea;" : "=r"(made) : "r"(word));
  return made;
}}

__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], const uint2 &b) {{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 {{%0, %1, %2, %3}},"
      " {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}}

__device__ inline float number(unsigned short bits) {{ // scale, zero point or minimum
  float made;
  asm("cvt.f32.{beside} %0, %1;" : "=f"(made) : "h"(bits));
  return made;
}}
__device__ inline unsigned short narrow(float x) {{
  unsigned short made;
  asm("cvt.rn.{type}.f32 %0, %1;" : "=h"(made) : "f"(x));
  return made;
}}

__device__ inline void meet(int number, int threads) {{ // barrier of some warps of the block
  asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
}}
__device__ inline void meet_cluster() {{
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}}
__device__ inline float held_by(unsigned block, const float *at) {{ // from another block
  unsigned there;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}}
__device__ inline void wait_for_earlier() {{ // waits for earlier kernels, and lets later ones start
  asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
}}
"""

SOURCE = """
constexpr int TILES = {tiles}, TEAM = {team}, TEAMS = {teams}, PARTS = {parts}, STAGES = {stages};
constexpr int EIGHTS = {eights}; // groups of eight rows of x
constexpr int FIT = {fit}, SPLIT = {split}; // chunks per group, groups per chunk: one is 1
constexpr bool ZEROS = {zeros}, MINIMA = {minima}, TABLE = {table}; // with scales; of codes
constexpr bool NEAR = {near}; // a word has 8 neighbours of k, else k and k + half a group
constexpr int HELD = {held}, PITCH = 128 + (NEAR ? 32 : 8); // rows of x, and their pitch
constexpr int WARPS = TEAM * TEAMS, THREADS = 32 * WARPS, TALL = 16 * TILES * TEAM;
__constant__ unsigned short numbers[16] = {{{numbers}}};

struct Stage {{ // buffers of a team
  uint4 codes[TILES][2][32 * TEAM];
  __align__(16) unsigned short x[HELD][PITCH];
}};
constexpr int BESIDE = ZEROS || MINIMA;
struct __align__(2 * SPLIT * (1 + BESIDE)) Steps {{ // scales of a row in a chunk
  unsigned short of[SPLIT][1 + BESIDE];
}};

extern "C" __global__ void {cluster} __launch_bounds__(THREADS, {blocks})
w4a16(const unsigned short *x, const unsigned char *packed, const Steps *scales,
      unsigned short *y, long long rows, long long columns, long long depth) {{
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const int warp = threadIdx.x / 32, quad = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
  const int team = warp / TEAM, mate = threadIdx.x % (32 * TEAM);
  const int part = blockIdx.x % PARTS, corner = blockIdx.x / PARTS * TALL;
  const int chunks = depth / 128, each = (chunks + PARTS - 1) / PARTS;
  const int first = part * each + team, last = min(part * each + each, chunks);
  const int turns = (each + TEAMS - 1) / TEAMS; // equal for all teams
  unsigned *table = (unsigned *)shared_memory;
  Stage *ring = (Stage *)(shared_memory + (TABLE ? 256 * 32 * 4 : 0)) + team * STAGES;

  // a thread has rows `quad` and `quad + 8` of 16 rows of weights, and row `quad` of 8 rows of x
  const int mine = corner + warp % TEAM * TILES * 16 + quad;
  const unsigned char *codes = packed + mine * (depth / 2) + place * 16;
  unsigned steps[TILES][2];
  for (int t = 0; t < TILES; t++)
    for (int i = 0; i < 2; i++)
      steps[t][i] = min(mine + t * 16 + i * 8, int(columns) - 1) * (chunks / FIT);
  // codes four rows apart would be in the same banks, so they are swizzled
  const int swapped = mate - place + (place ^ quad / 2);
  wait_for_earlier();

  auto fetch = [&](int chunk, Stage &to) {{
    const int there = chunk < last ? int(columns) - mine : 0; // rows of weights
    for (int t = 0; t < TILES; t++)
      for (int i = 0; i < 2; i++)
        copy_async(&to.codes[t][i][swapped], codes + (t * 16 + i * 8) * (depth / 2) + chunk * 64,
                   t * 16 + i * 8 < there);
    // half of x is for low codes; in groups of several chunks, x for high codes is further on
    const int low = NEAR ? chunk * 128 : chunk / FIT * (128 * FIT) + chunk % FIT * 64;
    for (int i = mate; i < HELD * 16; i += 32 * TEAM) {{
      const int at = low + i % 8 * 8 + i % 16 / 8 * (NEAR ? 64 : 64 * FIT);
      copy_async(&to.x[i / 16][i % 16 * 8], x + min(i / 16, int(rows) - 1) * depth + at,
                 chunk < last);
    }}
    copies_commit();
  }};
  for (int i = 0; i < STAGES - 1; i++) fetch(first + i * TEAMS, ring[i]);

  Steps next[TILES][2];
  auto fetch_steps = [&](int chunk) {{
    for (int t = 0; t < TILES; t++)
      for (int i = 0; i < 2; i++)
        next[t][i] = scales[steps[t][i] + min(chunk, chunks - 1) / FIT];
  }};
  fetch_steps(first);
  if (TABLE) {{
    for (int at = threadIdx.x; at < 256 * 32; at += THREADS)
      table[at] = numbers[at / 512] | numbers[at / 32 % 16] << 16;
    __syncthreads();
  }}

  float sums[TILES][EIGHTS][4] = {{}};
  int slot = 0, free = STAGES - 1;
  for (int turn = 0; turn < turns; turn++) {{
    const int chunk = first + turn * TEAMS;
    copies_wait<STAGES - 2>();
    // all threads' copies have arrived, and all are done with the last stage
    if (TEAM == 1) __syncwarp();
    else meet(1 + team, 32 * TEAM);
    fetch(chunk + (STAGES - 1) * TEAMS, ring[free]);
    Steps step[TILES][2];
    for (int t = 0; t < TILES; t++)
      for (int i = 0; i < 2; i++) step[t][i] = next[t][i];
    fetch_steps(chunk + TEAMS);

    const Stage &now = ring[slot];
    uint4 near[EIGHTS][4]; // x for two halves of a word, or two words
    auto x_of = [&](int e, int w, int high) -> const uint2 & {{
      const uint4 &both = near[e][NEAR ? w : w / 2 * 2 + high];
      return ((const uint2 *)&both)[NEAR ? high : w % 2];
    }};
    for (int e = 0; e < EIGHTS; e++)
      for (int j = 0; j < 4; j++) {{
        const int at = NEAR ? j * 32 + place * 8 : j % 2 * 64 + place * 16 + j / 2 * 8;
        near[e][j] = *(const uint4 *)&now.x[min(8 * e + quad, HELD - 1)][at];
      }}
    float all[SPLIT][EIGHTS][4] = {{}}; // sums of x, repeated for 16 rows
    const unsigned ones[4] = {{{one}u, {one}u, {one}u, {one}u}};
    if (!TABLE)
      for (int w = 0; w < 4; w++)
        for (int high = 0; high < 2; high++)
          for (int e = 0; e < EIGHTS; e++) multiply(all[w * SPLIT / 4][e], ones, x_of(e, w, high));
#pragma unroll
    for (int t = 0; t < TILES; t++) {{
      unsigned held[2][4];
      for (int i = 0; i < 2; i++)
        if (NEAR)
          for (int w = 0; w < 4; w++) {{
            const uint4 &from = now.codes[t][i][mate - place + (w ^ quad / 2)];
            held[i][w] = ((const unsigned *)&from)[place];
          }}
        else
          *(uint4 *)held[i] = now.codes[t][i][swapped];
#pragma unroll
      for (int s = 0; s < SPLIT; s++) {{
        float found[EIGHTS][4];
        for (int e = 0; e < EIGHTS; e++)
          for (int i = 0; i < 4; i++) {{
            const float middle = ZEROS ? number(step[t][i / 2].of[s][BESIDE]) : {middle};
            found[e][i] = -all[s][e][i] * middle;
          }}
#pragma unroll
        for (int w = s * 4 / SPLIT; w < (s + 1) * 4 / SPLIT; w++)
          for (int high = 0; high < 2; high++) {{
            unsigned a[4];
            for (int i = 0; i < 4; i++) {{
              const unsigned word = held[i % 2][w];
              if (TABLE)
                a[i] = table[(word >> (16 * high + i / 2 * 8) & 255) * 32 + threadIdx.x % 32];
              else
                a[i] = raised(__byte_perm(word, 0, i / 2 ? 0x4342 : 0x4140) >> 4 * high);
            }}
            for (int e = 0; e < EIGHTS; e++) multiply(found[e], a, x_of(e, w, high));
          }}
        for (int e = 0; e < EIGHTS; e++)
          for (int i = 0; i < 4; i++) {{
            const Steps &by = step[t][i / 2];
            sums[t][e][i] += found[e][i] * number(by.of[s][0]);
            if (MINIMA) sums[t][e][i] -= all[s][e][i] * number(by.of[s][BESIDE]);
          }}
      }}
    }}
    slot = slot + 1 == STAGES ? 0 : slot + 1;
    free = free + 1 == STAGES ? 0 : free + 1;
  }}

  // partial sums: [team][row of x][row of weights]
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
    meet_cluster(); // no block exits while others read its shared memory
  }}
}}
"""


def zero(dtype: torch.dtype) -> float:
    """Returns the number that the kernel unpacks code 0 to, before it subtracts the zero point: 128
    for bf16, 1024 for f16."""
    return 128.0 if dtype is torch.bfloat16 else 1024.0


@cache
def kernel(dtype: torch.dtype, config: Config, held: int, form: Form) -> CudaFunction:
    """Compiles the CUDA kernel for one element type, split of the work, storage form of weights,
    and `held` rows of x, a power of two."""
    name, first, one = _BITS[dtype]
    numbers = torch.tensor(form.table).to(dtype).view(torch.uint16).tolist()
    words = {False: "false", True: "true"}
    source = (PTX + SOURCE).format(
        type=name, first=first, one=one, beside="f16" if form.beside == "minima" else name,
        middle=int(zero(dtype)) + (0 if form.beside else 8), tiles=config.tiles, team=config.team,
        teams=config.teams, parts=config.parts, stages=config.stages, blocks=config.blocks,
        eights=-(-held // 8), held=held, fit=max(form.group // CHUNK, 1),
        split=max(CHUNK // form.group, 1), zeros=words[form.beside == "zeros"],
        minima=words[form.beside == "minima"], table=words[bool(form.table)],
        near=words[form.is_near], numbers=", ".join(map(str, numbers)),
        cluster=f"__cluster_dims__({config.parts}, 1, 1)" if config.parts > 1 else "",
    )  # fmt: skip
    return CudaFunction(source, "w4a16", config.shared(held, form), is_early=True)


def aligned(x: Tensor) -> Tensor:
    """Returns the tensor, or a copy if its address is not a multiple of 16."""
    return x.clone() if x.data_ptr() % 16 else x


def product(
    x: Tensor, packed: Tensor, scales: Tensor, form: Form, config: Config | None = None
) -> Tensor:
    """Multiplies dense `x [..., k]`, at most 32 rows, with `packed [n, k / 2]`.

    `scales [n, groups]`, or `scales [n, groups, 2]` with zero points or minima.
    """
    columns, depth = packed.shape[0], x.shape[-1]
    y = x.new_empty((*x.shape[:-1], columns))
    rows = x.numel() // depth
    if not y.numel():
        return y
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    cut = config or config_for(rows, columns, depth, form, processors)
    blocks = -(-columns // cut.tall) * cut.parts
    run = kernel(x.dtype, cut, held_of(rows), form)
    read = map(aligned, (x, packed, scales))
    run(blocks, 32 * cut.team * cut.teams, *read, y, rows, columns, depth)
    return y


def w4a16(x: Tensor, packed: Tensor, scales: Tensor, config: Config | None = None) -> Tensor:
    """Multiplies dense `x [..., k]`, at most 32 rows, with `packed [n, k / 2]`.

    `scales [n, groups]`; groups are multiples of 128 weights.
    """
    return product(x, packed, scales, Form(x.shape[-1] // scales.shape[1]), config)
