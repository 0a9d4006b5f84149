# %% [markdown]
# # 8. Quantization: fewer bits for the same numbers
#
# **Goals**: after this lesson you can quantize weights in groups, pack two codes in a byte, and
# move outliers from activations to weights.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy; the last cells need `.[torch,mlir]`.
#
# A weight in f32 takes 4 bytes; decoding a language model reads every weight for each token, so
# time is bytes. Quantization stores weights as small integers or tiny floats, with scales. We
# look at the formats bit by bit, at their errors, and at how a compiler lowers a quantized
# product.

# %%
import numpy as np

from stack.demos.course.show import has
from stack.explore.table import table
from stack.ops.qgemm import w4a16, w8a8
from stack.ops.qgemm.formats import E2M1, E4M3, E5M2, normal_float

print("E2M1:", E2M1.values[: E2M1.finite])
print("E4M3, the first:", E4M3.values[:10], "the largest:", E4M3.largest)
print("E5M2, the largest:", E5M2.largest)
print("NF4:", normal_float().round(3))

# %% [markdown]
# A format is the list of the numbers that its codes stand for. E2M1 has eight sizes; E4M3 spends
# a bit on precision that E5M2 spends on range. All numbers of a float format are closer together
# near zero, where most weights are.


# %%
def to_int(x, bits, axis=None):
    """Round to integers with one scale for all, or one along an axis: value = code * scale."""
    top = 2 ** (bits - 1) - 1
    scale = np.abs(x).max(axis=axis, keepdims=axis is not None) / top
    return np.clip(np.rint(x / scale), -top, top) * scale


rng = np.random.default_rng(0)
weight = rng.standard_normal((256, 256)).astype(np.float32)
weight[:, 7] *= 30  # one column with outliers, as trained models have
rows = []
for name, found in (
    ("int8, one scale", to_int(weight, 8)),
    ("int8, one for each column", to_int(weight, 8, 0)),
    ("int4, one scale", to_int(weight, 4)),
    ("int4, one for each column", to_int(weight, 4, 0)),
    ("E4M3", E4M3.round(weight)),
    ("E5M2", E5M2.round(weight)),
):
    others = np.delete(found - weight, 7, axis=1)
    rows.append([name, f"{np.sqrt((others**2).mean()):.4f}"])
print(table(["format", "error of the other columns"], rows))

# %% [markdown]
# One outlier sets the scale for everyone: with a single scale the other columns lose their
# digits. Scales for groups cost a few bits and bring them back. Floats do not mind, their spacing
# grows.
#
# The **operators** that compute with such weights are declared once, with a rule for their axes
# and a decomposition in NumPy's words. This one takes weights of 4 bits, two in a byte, with
# scales for groups.

# %%
x = rng.standard_normal((4, 64)).astype(np.float32)
packed = rng.integers(0, 256, (32, 32)).astype(np.uint8)
scales = rng.uniform(0, 1, (32, 4)).astype(np.float32)
print(w4a16(x, packed, scales).shape)
print(f"weights: {packed.nbytes + scales.nbytes} bytes, in f32 {32 * 64 * 4}")

# %% [markdown]
# With 8 bits on both sides the sums are exact, in int32: quantization is the only error.

# %%
x8, w8 = (rng.integers(-127, 128, s).astype(np.int8) for s in ((4, 64), (32, 64)))
ones = np.ones(4, np.float32), np.ones(32, np.float32)
print("exact:", np.array_equal(w8a8(x8, w8, *ones), x8.astype(np.int64) @ w8.T.astype(np.int64)))

# %% [markdown]
# With PyTorch, the operator goes through the compiler. In the IR it is a `custom` node whose body
# is the decomposition: unpack, scale, multiply. Where a kernel by hand is worth it, it is kept;
# here it is decomposed and fused like any other code.

# %%
if has("torch") and has("torch_mlir"):
    import torch

    import stack

    args = [torch.from_numpy(a) for a in (x, packed, scales)]
    compiled = stack.compile(lambda x, packed, scales: torch.relu(w4a16(x, packed, scales)), *args)
    print(compiled.run["imported"].text)
    for kernel in compiled.run.kernels:
        print(kernel, ", ".join(kernel.ops))

# %% [markdown]
# ## Exercise
#
# Quantize weights for `w4a16`: groups, codes, packing. Then balance weights against activations.
