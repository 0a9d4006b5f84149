// What a kernel's text needs to run on a CPU: each CUDA thread is a thread, blocks go one after the
// other. Shuffles and matrix instructions exchange registers through memory of the warp, with the
// layouts of the PTX manual; asynchronous copies happen when they are waited for, and no earlier.
// Accesses that are not aligned as the text says end the process.
#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __launch_bounds__(threads)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define EACH(n) for (int i = 0; i < (n); ++i)
#define EVERY(n, step) for (int i = 0; i < (n); i += (step))
#define INFINITY_F32 __builtin_inff()
#define INFINITY_F64 __builtin_inf()
#define NAN_F32 __builtin_nanf("")
#define NAN_F64 __builtin_nan("")

struct Index {
  unsigned x, y, z;
};
struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

static thread_local Index threadIdx;
static Index blockIdx;
alignas(1024) static unsigned char shared_memory[1 << 18];
static std::unique_ptr<std::barrier<>> of_block;
static std::vector<std::unique_ptr<std::barrier<>>> of_warp;
static char exchange[32][32][32];  // 32 bytes for each lane of each warp

inline void __syncthreads() { of_block->arrive_and_wait(); }
inline void __syncwarp() { of_warp[threadIdx.y]->arrive_and_wait(); }

// every lane gives a value; `other(lane)` is that of another one until all have read
template <class T, class F> void swap_values(const T& mine, F read) {
  static_assert(sizeof(T) <= 32);
  memcpy(exchange[threadIdx.y][threadIdx.x], &mine, sizeof mine);
  __syncwarp();
  read([](int lane) {
    T value;
    memcpy(&value, exchange[threadIdx.y][lane], sizeof value);
    return value;
  });
  __syncwarp();
}

inline float widen(bf16 x) {
  const unsigned bits = unsigned(x.bits) << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}
inline float widen(f16 x) {
  _Float16 y;
  memcpy(&y, &x, sizeof y);
  return float(y);
}
template <class T> T narrow(double x);
template <> inline bf16 narrow<bf16>(double x) {
  const float rounded = float(x);
  if (rounded != rounded) return {0x7fff};
  unsigned bits;
  memcpy(&bits, &rounded, sizeof bits);
  return {(unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
template <> inline f16 narrow<f16>(double x) {
  const _Float16 rounded = _Float16(x);
  f16 y;
  memcpy(&y, &rounded, sizeof y);
  return y;
}

template <class T> T max_of(T x, T y) { return x > y || x != x ? x : y; }
template <class T> T min_of(T x, T y) { return x < y || x != x ? x : y; }
inline float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float quotient(float x, float y) { return x / y; }
inline float inverse_of(float x) { return 1.0f / x; }
inline float exp2_of(float x) { return exp2f(x); }
inline double exp2_of(double x) { return exp2(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

inline void check(const void* at, int bytes) {
  if (uintptr_t(at) % bytes) abort();
}
template <int bytes, class T, int n> void load_block(T (&to)[n], const T* from) {
  check(from, bytes);
  memcpy(to, from, sizeof to);
}
template <int bytes, class T, int n> void store_block(T* to, const T (&from)[n]) {
  check(to, bytes);
  memcpy(to, from, sizeof from);
}

template <int n, class T, class U = T>
void load_run(T* to, const T* from, bool is_there = true, U other = {}) {
  if (is_there) {
    check(from, n * sizeof(T));
    memcpy(to, from, n * sizeof(T));
  } else
    EACH(n) to[i] = other;
}
template <int n, class T> void store_run(T* to, const T* from) {
  check(to, n * sizeof(T));
  memcpy(to, from, n * sizeof(T));
}
template <int n, class T> void stream_run(T* to, const T* from) { store_run<n>(to, from); }
template <class T> T shuffled(T x, int lane) {
  T found;
  swap_values(x, [&](auto other) { found = other(lane >= 0 && lane < 32 ? lane : threadIdx.x); });
  return found;
}
template <class T> T shuffle_xor(T x, int by) { return shuffled(x, threadIdx.x ^ by); }
template <class T> T shuffle_up(T x, int by) { return shuffled(x, int(threadIdx.x) - by); }
template <class T> T shuffle_down(T x, int by) { return shuffled(x, int(threadIdx.x) + by); }
template <class T> unsigned narrow_pair(float low, float high) {
  return narrow<T>(low).bits | unsigned(narrow<T>(high).bits) << 16;
}
template <class T> unsigned pair_of(T low, T high) { return low.bits | unsigned(high.bits) << 16; }

template <int count, class T, class F> T in_pairs(const T* x, F combine) {
  if constexpr (count == 1)
    return x[0];
  else
    return combine(in_pairs<count / 2>(x, combine),
                   in_pairs<count - count / 2>(x + count / 2, combine));
}

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool is_there;
};
static thread_local std::vector<std::vector<Copy>> groups(1);
template <int bytes> void copy_async(void* to, const void* from, bool is_there = true) {
  check(to, bytes);
  check(from, bytes);
  groups.back().push_back({to, from, bytes, is_there});
}
inline void copies_commit() { groups.emplace_back(); }
template <int pending> void copies_wait() {
  while (int(groups.size()) - 1 > pending) {
    for (const Copy& copy : groups.front())
      copy.is_there ? memcpy(copy.to, copy.from, copy.bytes) : memset(copy.to, 0, copy.bytes);
    groups.erase(groups.begin());
  }
}

// ldmatrix: lane 8 j + r points at row r of matrix j; a lane gets two neighbours of a row, or,
// turned, of a column
inline void read_matrices(unsigned (&to)[4], const void* row, bool is_turned) {
  check(row, 16);
  const int first = threadIdx.x / 4, second = threadIdx.x % 4 * 2;
  swap_values((const unsigned short*)row, [&](auto other) {
    for (int j = 0; j < 4; ++j) {
      const unsigned low = is_turned ? other(8 * j + second)[first] : other(8 * j + first)[second];
      const unsigned high =
          is_turned ? other(8 * j + second + 1)[first] : other(8 * j + first)[second + 1];
      to[j] = low | high << 16;
    }
  });
}
inline void load_matrices(unsigned (&to)[4], const void* row) { read_matrices(to, row, false); }
inline void load_matrices_turned(unsigned (&to)[4], const void* row) {
  read_matrices(to, row, true);
}

struct Operands {
  unsigned a[4], b[2];
};
template <class T> float half_of(unsigned pair, int which) {
  return widen(T{(unsigned short)(pair >> (16 * which))});
}
template <class T> void mma(float* low, float* high, const unsigned* a, const unsigned* b) {
  const float d[4] = {low[0], low[1], high[0], high[1]};
  float sums[4];
  swap_values(Operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, [&](auto other) {
    for (int i = 0; i < 4; ++i) {
      const int row = threadIdx.x / 4 + i / 2 * 8, column = threadIdx.x % 4 * 2 + i % 2;
      sums[i] = d[i];
      for (int k = 0; k < 16; ++k) {
        const Operands left = other(row % 8 * 4 + k % 8 / 2), right = other(column * 4 + k % 8 / 2);
        sums[i] += half_of<T>(left.a[row / 8 + k / 8 * 2], k % 2) *
                   half_of<T>(right.b[k / 8], k % 2);
      }
    }
  });
  memcpy(low, sums, 8);
  memcpy(high, sums + 2, 8);
}
inline void mma_bf16(float* low, float* high, const unsigned* a, const unsigned* b) {
  mma<bf16>(low, high, a, b);
}
inline void mma_f16(float* low, float* high, const unsigned* a, const unsigned* b) {
  mma<f16>(low, high, a, b);
}

template <int rows, int line, int size> int swizzled(int row, int column) {
  const int at = ((column / line * rows + row) * line + column % line) * size;
  return (at ^ (at >> 3 & (line * size - 16))) / size;
}
template <int rows, int line> int corner_of(int row, int column) {
  if (row % 8) abort();
  return (column / line * rows + row) * line + column % line;
}

// matrices of warpgroups: descriptors as the PTX manual has them, on bytes of `shared_memory`
template <int bytes, int panel> unsigned long long matrix_at(const void* first) {
  const unsigned long long at = (const unsigned char*)first - shared_memory;
  const unsigned long long kind = bytes == 128 ? 1 : bytes == 64 ? 2 : 3;
  return (at & 0x3ffff) >> 4 | (unsigned long long)((panel & 0x3ffff) >> 4) << 16 |
         (unsigned long long)(8 * bytes >> 4) << 32 | kind << 62;
}
template <class T> float element_of(unsigned long long matrix, int row, int depth, bool is_turned) {
  const int start = (matrix & 0x3fff) << 4, leading = (matrix >> 16 & 0x3fff) << 4;
  const int stride = (matrix >> 32 & 0x3fff) << 4, bytes = 256 >> (matrix >> 62);
  int at;
  if (is_turned) {
    const int line = bytes / 2;
    at = start + row / line * leading + row % line * 2 + depth / 8 * stride + depth % 8 * bytes;
  } else
    at = start + row / 8 * stride + row % 8 * bytes + depth * 2;
  at ^= at >> 3 & (bytes - 16);
  T value;
  memcpy(&value, shared_memory + at, 2);
  return widen(value);
}
// products are done when they are waited for, and no earlier
static thread_local std::vector<std::vector<std::function<void()>>> products(1);
inline void reveal_shared() {}
inline void settle(float&) {}
inline void groups_begin() {}
inline void groups_commit() { products.emplace_back(); }
template <int pending> void groups_wait() {
  while (int(products.size()) - 1 > pending) {
    for (const auto& product : products.front()) product();
    products.erase(products.begin());
  }
}
template <class T, class F>
void multiply(int n, float* low, float* high, F left, unsigned long long b, bool turned, bool adds) {
  products.back().push_back([=] {
    for (int j = 0; j < n / 4; ++j) {
      const int column = j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2;
      for (int half = 0; half < 2; ++half) {
        float& sum = half ? high[j] : low[j];
        sum = adds ? sum : 0;
        for (int k = 0; k < 16; ++k) sum += left(half, k) * element_of<T>(b, column, k, turned);
      }
    }
  });
}
template <class T, int turned_a, int turned_b>
void multiply(int n, float* low, float* high, unsigned long long a, unsigned long long b, bool adds) {
  const int row = threadIdx.y % 4 * 16 + threadIdx.x / 4;
  const auto left = [=](int half, int k) { return element_of<T>(a, row + half * 8, k, turned_a); };
  multiply<T>(n, low, high, left, b, turned_b, adds);
}
template <class T, int turned_b>
void multiply(
    int n, float* low, float* high, const unsigned (&a)[4], unsigned long long b, bool adds) {
  std::array<float, 32> rows;
  swap_values(Operands{{a[0], a[1], a[2], a[3]}, {}}, [&](auto other) {
    for (int i = 0; i < 32; ++i) {
      const int half = i / 16, k = i % 16;
      const Operands own = other(threadIdx.x / 4 * 4 + k % 8 / 2);
      rows[i] = half_of<T>(own.a[half + k / 8 * 2], k % 2);
    }
  });
  const auto left = [=](int half, int k) { return rows[half * 16 + k]; };
  multiply<T>(n, low, high, left, b, turned_b, adds);
}
#define MULTIPLY(n, t)                                                                       \
  template <int turned_a, int turned_b>                                                      \
  void multiply_##n##_##t(                                                                   \
      float* low, float* high, unsigned long long a, unsigned long long b, bool adds) {      \
    multiply<t, turned_a, turned_b>(n, low, high, a, b, adds);                               \
  }                                                                                          \
  template <int turned_b>                                                                    \
  void multiply_##n##_##t(                                                                   \
      float* low, float* high, const unsigned (&a)[4], unsigned long long b, bool adds) {    \
    multiply<t, turned_b>(n, low, high, a, b, adds);                                         \
  }
MULTIPLY(16, bf16) MULTIPLY(32, bf16) MULTIPLY(64, bf16) MULTIPLY(128, bf16) MULTIPLY(256, bf16)
MULTIPLY(16, f16) MULTIPLY(32, f16) MULTIPLY(64, f16) MULTIPLY(128, f16) MULTIPLY(256, f16)

template <class F> void run_grid(unsigned blocks, unsigned warps, F kernel) {
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx = {block, 0, 0};
    memset(shared_memory, 0x7f, sizeof shared_memory);
    of_block = std::make_unique<std::barrier<>>(32 * warps);
    of_warp.clear();
    for (unsigned w = 0; w < warps; ++w) of_warp.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 32 * warps; ++t)
      threads.emplace_back([=] {
        threadIdx = {t % 32, t / 32, 0};
        groups.assign(1, {});
        products.assign(1, {});
        kernel();
      });
    for (std::thread& thread : threads) thread.join();
  }
}
