"""Device functions that kernels call; each one is printed before the kernels that use it."""

from __future__ import annotations

import re

from .product_prelude import PARTS, multiply

# name: (names of parts that it needs, text)
_PARTS: dict[str, tuple[tuple[str, ...], str]] = {
    "EACH": ((), '#define EACH(n) _Pragma("unroll") for (int i = 0; i < (n); ++i)'),
    "EVERY": (
        (),
        '#define EVERY(n, step) _Pragma("unroll") for (int i = 0; i < (n); i += (step))',
    ),
    "INFINITY_F32": ((), "#define INFINITY_F32 __int_as_float(0x7f800000)"),
    "INFINITY_F64": ((), "#define INFINITY_F64 __longlong_as_double(0x7ff0000000000000ll)"),
    "NAN_F32": ((), "#define NAN_F32 __int_as_float(0x7fc00000)"),
    "NAN_F64": ((), "#define NAN_F64 __longlong_as_double(0x7ff8000000000000ll)"),
    "f16": ((), "struct f16 { unsigned short bits; };"),
    "bf16": ((), "struct bf16 { unsigned short bits; };"),
    "widen": (
        ("f16", "bf16"),
        """__device__ inline float widen(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ inline float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}""",
    ),
    "narrow": (
        ("f16", "bf16"),
        """template <class T> __device__ inline T narrow(float x);
template <> __device__ inline bf16 narrow<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <> __device__ inline f16 narrow<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <class T> __device__ inline T narrow(double x) { return narrow<T>(float(x)); }
template <> __device__ inline f16 narrow<f16>(double x) {
  f16 y;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
  return y;
}
template <class T, class I> __device__ inline T narrow(I x) { return narrow<T>(float(x)); }""",
    ),
    "max_of": (
        (),
        "template <class T> __device__ inline T max_of(T x, T y) {"
        " return x > y || x != x ? x : y; }\n"
        "__device__ inline float max_of(float x, float y) { // a nan wins\n"
        '  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));\n'
        "  return x;\n}",
    ),
    "min_of": (
        (),
        "template <class T> __device__ inline T min_of(T x, T y) {"
        " return x < y || x != x ? x : y; }\n"
        "__device__ inline float min_of(float x, float y) { // a nan wins\n"
        '  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));\n'
        "  return x;\n}",
    ),
    "exp2_of": (
        (),
        """__device__ inline float exp2_of(float x) { // subnormal numbers become 0
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}
__device__ inline double exp2_of(double x) { return exp2(x); }""",
    ),
    "quotient": (
        (),
        """__device__ inline float quotient(float x, float y) { // off by at most 2 ulp
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}""",
    ),
    "inverse_of": (
        (),
        """__device__ inline float inverse_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}""",
    ),
    "sign_of": (
        (),
        "template <class T> __device__ inline T sign_of(T x) {"
        " return x > 0 ? T(1) : x < 0 ? T(-1) : x; }",
    ),
    "sigmoid_of": (
        (),
        "__device__ inline float sigmoid_of(float x) {"
        " return 1.0f / (1.0f + expf(-x)); }\n"
        "__device__ inline double sigmoid_of(double x) {"
        " return 1.0 / (1.0 + exp(-x)); }",
    ),
    "div_of": (
        (),
        """template <class T> __device__ inline T div_of(T x, T y) {
  if (y == 0) return T(-1);
  return T(-1) < T(0) && y == T(-1) ? T(0ull - (unsigned long long)x) : T(x / y);
}""",
    ),
    "rem_of": (
        (),
        """template <class T> __device__ inline T rem_of(T x, T y) {
  if (y == 0) return x;
  return T(-1) < T(0) && y == T(-1) ? T(0) : T(x % y);
}""",
    ),
    "shl_of": (
        (),
        """template <class T> __device__ inline T shl_of(T x, T y) {
  return y < 0 || y >= T(8 * sizeof(T)) ? T(0) : T((unsigned long long)x << y);
}""",
    ),
    "shr_of": (
        (),
        """template <class T> __device__ inline T shr_of(T x, T y) {
  const bool inside = !(y < 0 || y >= T(8 * sizeof(T)));
  return inside ? T(x >> y) : T(x < 0 ? -1 : 0);
}""",
    ),
    "pow_of": (
        (),
        """template <class T> __device__ inline T pow_of(T x, T y) {
  if (y < 0) return x == T(1) ? T(1) : x == T(-1) ? (y % 2 == 0 ? T(1) : T(-1)) : T(0);
  unsigned long long base = x, out = 1;
  for (; y > 0; y >>= 1, base *= base)
    if (y & 1) out *= base;
  return T(out);
}""",
    ),
    "bits_as": (
        (),
        """template <class T, class S> __device__ inline T bits_as(S x) {
  T y;
  memcpy(&y, &x, sizeof y);
  return y;
}""",
    ),
    "Piece": (
        (),
        """template <int bytes> struct Piece;
template <> struct Piece<16> { typedef uint4 type; };
template <> struct Piece<8> { typedef uint2 type; };
template <> struct Piece<4> { typedef unsigned type; };
template <> struct Piece<2> { typedef unsigned short type; };
template <> struct Piece<1> { typedef unsigned char type; };""",
    ),
    "load_run": (
        ("EACH", "Piece"),
        """// n contiguous elements at once
template <int n, class T> __device__ inline void load_run(T* to, const T* __restrict__ from) {
  typedef typename Piece<n * sizeof(T)>::type P;
  const P piece = *reinterpret_cast<const P*>(from);
  memcpy(to, &piece, sizeof piece);
}
template <int n, class T, class U>
__device__ inline void load_run(T* to, const T* __restrict__ from, bool is_there, U other) {
  if (is_there)
    load_run<n>(to, from);
  else
    EACH(n) to[i] = other;
}""",
    ),
    "store_run": (
        ("Piece",),
        """template <int n, class T> __device__ inline void store_run(T* to, const T* from) {
  typedef typename Piece<n * sizeof(T)>::type P;
  P piece;
  memcpy(&piece, from, sizeof piece);
  *reinterpret_cast<P*>(to) = piece;
}
// a streaming store, not to be kept in the cache
template <int n, class T> __device__ inline void stream_run(T* to, const T* from) {
  typedef typename Piece<n * sizeof(T)>::type P;
  P piece;
  memcpy(&piece, from, sizeof piece);
  __stcs(reinterpret_cast<P*>(to), piece);
}""",
    ),
    "Bits": (
        (),
        """template <int bytes> struct Bits { typedef unsigned type; };
template <> struct Bits<8> { typedef unsigned long long type; };""",
    ),
    "shuffle_xor": (("Bits",), "SHUFFLE xor"),
    "shuffle_up": (("Bits",), "SHUFFLE up"),
    "shuffle_down": (("Bits",), "SHUFFLE down"),
    "pair_of": (
        (),
        """// two 16-bit elements in a register
template <class T> __device__ inline unsigned pair_of(T low, T high) {
  return unsigned(low.bits) | unsigned(high.bits) << 16;
}""",
    ),
    "narrow_pair": (
        ("f16", "bf16"),
        """// two floats as 16-bit elements in a register
template <class T> __device__ inline unsigned narrow_pair(float low, float high);
template <> __device__ inline unsigned narrow_pair<bf16>(float low, float high) {
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
template <> __device__ inline unsigned narrow_pair<f16>(float low, float high) {
  unsigned y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}""",
    ),
    "in_pairs": (
        (),
        """// pairwise reduction: rounding errors grow with the logarithm of the count
template <int count, class T, class F> __device__ inline T in_pairs(const T* x, F combine) {
  if constexpr (count == 1)
    return x[0];
  else
    return combine(in_pairs<count / 2>(x, combine),
                   in_pairs<count - count / 2>(x + count / 2, combine));
}""",
    ),
    "copy_async": (
        ("shared_address",),
        """template <int bytes>
__device__ inline void copy_async(void* to, const void* from, bool is_there = true) {
  const int size = is_there ? bytes : 0;  // the rest is filled with zeros
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(shared_address(to)), "l"(from), "n"(bytes), "r"(size) : "memory");
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }""",
    ),
    "copies_wait": (
        (),
        """template <int pending> __device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}""",
    ),
    **PARTS,
}

_PARTS_OF = {
    "copies_commit": "copy_async",
    "stream_run": "store_run",
    "groups_commit": "groups_begin",
}
_SHUFFLE = """template <class T> __device__ inline T shuffle_{kind}(T x, int by) {{
  typename Bits<sizeof(T)>::type bits = 0;
  memcpy(&bits, &x, sizeof x);
  bits = __shfl_{kind}_sync(~0u, bits, by);
  memcpy(&x, &bits, sizeof x);
  return x;
}}"""


def prelude(kernel: str) -> str:
    """The device functions that a kernel's text names, with their dependencies first."""
    words = set(re.findall(r"[A-Za-z_]\w*", kernel))
    words |= {whole for part, whole in _PARTS_OF.items() if part in words}
    taken: dict[str, None] = {}

    def take(name: str) -> None:
        for need in _PARTS[name][0]:
            take(need)
        taken.setdefault(name)

    for name in _PARTS:
        if name in words:
            take(name)
    return "".join(f"{text}\n" for text in (*map(_text, taken), *multiply(kernel)))


def _text(name: str) -> str:
    text = _PARTS[name][1]
    if text.startswith("SHUFFLE "):
        return _SHUFFLE.format(kind=text.removeprefix("SHUFFLE "))
    return text


# words of C++ and of CUDA's library that a value must not have as its name
_WORDS = """
    alignas alignof and_eq catch char16_t char32_t char8_t compl concept const_cast consteval
    constexpr constinit co_await co_return co_yield decltype dynamic_cast explicit friend mutable
    namespace noexcept not_eq nullptr or_eq protected reinterpret_cast requires static_assert
    static_cast thread_local try typeid typename virtual wchar_t xor_eq copies_wait warpSize
    asm auto bool break case char class const continue default delete do double else enum export
    extern false float for goto if inline int long new operator private public register return
    short signed sizeof static struct switch template this throw true typedef typename union
    unsigned using void volatile while and or not xor bitand bitor copies_commit shared_memory
    groups_commit stream_run
    i k r c exp log sin cos tan abs max min pow floor ceil round rint trunc sqrt rsqrt exp2 expm1
    log2 log1p asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfinv lgamma fma fmod div
    left right low high
    threadIdx blockIdx blockDim gridDim memcpy printf assert index y0 y1 yn j0 j1 jn
"""
RESERVED = frozenset(_PARTS).union(_WORDS.split())
