"""A third party's operator, with a kernel in each of four languages."""

import numpy as np

import stack
from stack.hosted.native import CFunction, CudaFunction

C = CFunction("""
#include <stdint.h>
void clamp(const float *x, float *y, int64_t n, double top) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i] < top ? x[i] : top;
}""", "clamp")  # fmt: skip

CUDA = CudaFunction("""
extern "C" __global__ void clamp(const double *x, double *y, long long n, double top) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = min(max(x[i], 0.0), top);
}""", "clamp")  # fmt: skip


def in_c(x, *, top):
    y = np.empty_like(x)
    C(x, y, x.size, top)
    return y


def in_python(x, *, top):
    return np.clip(x, 0, top)


def in_cuda(x, *, top):
    y = x.new_empty(x.shape)
    CUDA(-(-x.numel() // 256), 256, x, y, x.numel(), top)
    return y


def in_triton(x, *, top):
    from acme_triton import clamp

    return clamp(x, top)


@stack.op(
    "acme.clamp",
    rule="... a -> ... a",
    kernels=(
        stack.Kernel("cpu", in_c, "c"),
        stack.Kernel("cpu", in_python, "python", ("f64",)),
        stack.Kernel("cuda", in_cuda, "nvrtc", ("f64",), capturable=True),
        stack.Kernel("cuda", in_triton, "triton", ("f32",), capturable=True),
    ),
)
def clamp(np, x, *, top: float = 6.0):
    """x between 0 and a bound."""
    return np.minimum(np.maximum(x, 0.0), top)
