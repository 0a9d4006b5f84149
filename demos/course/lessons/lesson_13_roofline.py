# %% [markdown]
# # 13. The roofline: what bounds a kernel
#
# **Goals**: after this lesson you can compute the intensity of a kernel and the ridge point of a
# machine, and predict which of the two limits the time.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy.
#
# A kernel computes, and it moves bytes. A machine has a peak rate for each. Both happen at the same
# time, so the slower one decides. The **intensity** of a kernel is its operations for each byte
# moved. The **ridge point** of a machine is its peak of operations over its peak of bytes: the
# intensity at which both take the same time.

# %%
from stack.explore.table import table
from stack.target import load

gpu = load("sm_90")
peak, rate = gpu.bf16_rate, gpu.memory_rate
print(f"{peak:.3g} operations and {rate:.3g} bytes in a second: ridge point {peak / rate:.0f}")

# %% [markdown]
# Below the ridge point a kernel is **bound by memory**, and a faster multiplier does not help.
# Above it, it is **bound by compute**, and fewer bytes do not help. The rate that a kernel can
# reach is the smaller of `peak` and `intensity * rate`. Drawn over the intensity, this is a slope
# and a flat roof: the **roofline**.

# %%
PROGRAMS = {  # operations and bytes, in bf16
    "add two vectors of 1M": (1e6, 3 * 2e6),
    "softmax of 1M scores": (5e6, 2 * 2e6),
    "matmul 1 x 4096 x 4096": (2 * 4096**2, 2 * (4096 + 4096**2 + 4096)),
    "matmul 4096 x 4096 x 4096": (2 * 4096**3, 2 * 3 * 4096**2),
}
rows = []
for name, (flops, moved) in PROGRAMS.items():
    intensity = flops / moved
    reached = min(peak, intensity * rate)
    bound = "memory" if intensity < peak / rate else "compute"
    rows.append([name, f"{intensity:.2f}", bound, f"{100 * reached / peak:.1f} %"])
print(table(["kernel", "operations for a byte", "bound by", "of the peak"], rows))

# %% [markdown]
# The two matmuls are the two phases of a language model. When it reads a prompt, many rows are
# multiplied with each weight, and the tensor cores are the limit. When it writes, one row is
# multiplied, and every weight travels for two operations. This is why requests are put together
# into batches: more rows for the same weights.
#
# How many rows does a matmul need, to be bound by compute? Its operations are 2 m k n. Its bytes
# are the bytes of both operands and of the result. Some matmuls never are: with k = 64, the result
# itself has too many bytes.
#
# `stackc dump --profile` draws the roofline of a program, with the measured time of each kernel.
#
# ## Exercise
#
# The ridge point, the rate that a kernel can reach, and the least number of rows.
