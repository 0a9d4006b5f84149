"""Small programs that show planted faults: IR text by name, and targets of both frameworks."""

# ruff: noqa: E501 (IR text)

from __future__ import annotations

TEXTS = {
    "transposes": """func @f(%x: f32[2, 3, 4, 5]) -> (f32[3, 5, 2, 4]) at tensor {
  %t = transpose(%x) {perm=[1, 2, 0, 3]} : f32[3, 4, 2, 5] from "m.py:1"
  %z = transpose(%t) {perm=[0, 3, 2, 1]} : f32[3, 5, 2, 4] from "m.py:2"
  return %z
}
""",
    "broadcasts": """func @f(%x: f32[4], %y: f32[4]) -> (f32[4, 4, 4], f32[4, 1, 4]) at tensor {
  %a = broadcast(%x) {axes=[0]} : f32[4, 4] from "m.py:1"
  %b = broadcast(%a) {axes=[1, 2]} : f32[4, 4, 4] from "m.py:2"
  %c = broadcast(%y) {axes=[1]} : f32[4, 4] from "m.py:3"
  %d = reshape(%c) : f32[4, 1, 4] from "m.py:4"
  return %b, %d
}
""",
    "reductions": """func @f(%x: f32[3, 4, 5]) -> (f32[5, 3]) at tensor {
  %t = transpose(%x) {perm=[2, 1, 0]} : f32[5, 4, 3] from "m.py:1"
  %z = reduce(%t) {axes=[1], kind="sum"} : f32[5, 3] from "m.py:2"
  return %z
}
""",
    "sunk": """func @f(%x: f32[2, 3, 4, 5]) -> (f32[2, 6, 8, 5]) at tensor {
  %a = transpose(%x) {perm=[0, 3, 1, 2]} : f32[2, 5, 3, 4] from "m.py:1"
  %b = broadcast(%a) {axes=[0, 1, 2, 4]} : f32[2, 5, 3, 2, 4, 2] from "m.py:2"
  %c = reshape(%b) : f32[2, 5, 6, 8] from "m.py:3"
  %d = exp(%c) : f32[2, 5, 6, 8] from "m.py:4"
  %z = transpose(%d) {perm=[0, 2, 3, 1]} : f32[2, 6, 8, 5] from "m.py:5"
  return %z
}
""",
    # the matmul absorbs any transpose, so a wrong one is as cheap as the right one
    "split": """func @f(%x: f32[4, 16], %y: f32[4, 5]) -> (f32[4, 4, 5]) at tensor {
  %t = transpose(%x) {perm=[1, 0]} : f32[16, 4] from "m.py:1"
  %r = reshape(%t) : f32[4, 4, 4] from "m.py:2"
  %z = dot(%r, %y) {rule="a b k, k n -> a b n"} : f32[4, 4, 5] from "m.py:3"
  return %z
}
""",
    "turned": """func @f(%x: f32[4, 4, 4]) -> (f32[4, 4, 2, 4]) at tensor {
  %a = transpose(%x) {perm=[1, 2, 0]} : f32[4, 4, 4] from "m.py:1"
  %b = broadcast(%a) {axes=[0, 1, 3]} : f32[4, 4, 2, 4] from "m.py:2"
  return %b
}
""",
    "folds": """func @f(%x: f32[8]) -> (f32[8], f32[8]) at tensor {
  %i = iota() {axis=0} : f32[8] from "m.py:1"
  %e = exp(%i) : f32[8] from "m.py:2"
  %z = mul(%x, %e) : f32[8] from "m.py:3"
  %n = neg(%x) : f32[8] from "m.py:4"
  %y = abs(%n) : f32[8] from "m.py:5"
  return %z, %y
}
""",
    "dots": """func @f(%x: f32[3, 4, 5], %y: f32[4, 6, 5], %w: f32[4, 5, 7]) -> (f32[6, 4, 3], f32[3]) at tensor {
  %t = transpose(%x) {perm=[1, 2, 0]} : f32[4, 5, 3] from "m.py:1"
  %d = dot(%t, %y) {rule="b k m, b n k -> b m n"} : f32[4, 3, 6] from "m.py:2"
  %z = transpose(%d) {perm=[2, 0, 1]} : f32[6, 4, 3] from "m.py:3"
  %l = dot(%x, %w) {rule="a b c, b c d -> a"} : f32[3] from "m.py:4"
  return %z, %l
}
""",
    "algebra": """func @f(%x: f32[32], %y: f32[32]) -> (f32[32], f32[32], f32[32], f32[32], bool[32], f32[32], f32[32], f32[32], f32[32]) at tensor {
  %n = neg(%y) : f32[32] from "m.py:1"
  %a = sub(%x, %n) : f32[32] from "m.py:2"
  %b = add(%x, %n) : f32[32] from "m.py:3"
  %g = gt(%x, %y) : bool[32] from "m.py:4"
  %k = not(%g) : bool[32] from "m.py:5"
  %c = select(%k, %x, %y) : f32[32] from "m.py:6"
  %d = div(%x, 8.0:f32) : f32[32] from "m.py:7"
  %e = eq(%x, %x) : bool[32] from "m.py:8"
  %h = sub(%y, %y) : f32[32] from "m.py:9"
  %i = mul(%y, 0.0:f32) : f32[32] from "m.py:10"
  %p = pow(%x, 3.0:f32) : f32[32] from "m.py:11"
  %q = tanh(%x) : f32[32] from "m.py:12"
  %s = add(%q, 1.0:f32) : f32[32] from "m.py:13"
  return %a, %b, %c, %d, %e, %h, %i, %p, %s
}
""",
    "attention": """func @f(%q: f32[96, 16], %k: f32[16, 96], %v: f32[96, 8]) -> (f32[96, 8]) at tensor {
  %s = dot(%q, %k) {rule="a k, k b -> a b"} : f32[96, 96] from "m.py:1"
  %m = reduce(%s) {axes=[1], kind="max"} : f32[96] from "m.py:2"
  %wide = broadcast(%m) {axes=[0]} : f32[96, 96] from "m.py:3"
  %d = sub(%s, %wide) : f32[96, 96] from "m.py:3"
  %e = exp(%d) : f32[96, 96] from "m.py:4"
  %l = reduce(%e) {axes=[1], kind="sum"} : f32[96] from "m.py:5"
  %o = dot(%e, %v) {rule="a k, k b -> a b"} : f32[96, 8] from "m.py:6"
  %below = broadcast(%l) {axes=[0]} : f32[96, 8] from "m.py:7"
  %y = div(%o, %below) : f32[96, 8] from "m.py:7"
  return %y
}
""",
    "centred": """func @f(%q: f32[64, 8], %k: f32[65, 8], %v: f32[65, 4], %g: f32[64, 4]) -> (f32[64, 8]) at tensor {
  %x = dot(%q, %k) {rule="m d, k d -> m k"} : f32[64, 65] from "m.py:1"
  %m = reduce(%x) {axes=[1], kind="max"} : f32[64] from "m.py:2"
  %wide = broadcast(%m) {axes=[0]} : f32[64, 65] from "m.py:2"
  %d = sub(%x, %wide) : f32[64, 65] from "m.py:2"
  %e = exp(%d) : f32[64, 65] from "m.py:2"
  %l = reduce(%e) {axes=[1], kind="sum"} : f32[64] from "m.py:3"
  %below = broadcast(%l) {axes=[0]} : f32[64, 65] from "m.py:3"
  %p = div(%e, %below) : f32[64, 65] from "m.py:3"
  %h = dot(%g, %v) {rule="m n, k n -> m k"} : f32[64, 65] from "m.py:4"
  %t = mul(%p, %h) : f32[64, 65] from "m.py:5"
  %r = reduce(%t) {axes=[1], kind="sum"} : f32[64] from "m.py:5"
  %o = broadcast(%r) {axes=[0]} : f32[64, 65] from "m.py:6"
  %w = mul(%p, %o) : f32[64, 65] from "m.py:6"
  %u = sub(%t, %w) : f32[64, 65] from "m.py:6"
  %z = dot(%u, %k) {rule="m k, k d -> m d"} : f32[64, 8] from "m.py:7"
  return %z
}
""",
    # the reshapes merge rows and columns, so no pass moves them past the matmuls that read them
    "held": """func @f(%x: f32[64, 64], %w: f32[64, 64], %v: f32[512, 64]) -> (f32[8, 64], f32[64, 64]) at tensor {
  %a = dot(%x, %w) {rule="a k, k b -> a b"} : f32[64, 64] from "m.py:1"
  %seen = reshape(%a) : f32[8, 512] from "m.py:2"
  %b = dot(%a, %w) {rule="a k, k b -> a b"} : f32[64, 64] from "m.py:3"
  %c = dot(%b, %w) {rule="a k, k b -> a b"} : f32[64, 64] from "m.py:4"
  %d = dot(%c, %w) {rule="a k, k b -> a b"} : f32[64, 64] from "m.py:5"
  %last = reshape(%d) : f32[8, 512] from "m.py:6"
  %e = dot(%last, %v) {rule="a k, k b -> a b"} : f32[8, 64] from "m.py:7"
  %g = dot(%seen, %v) {rule="a k, k b -> a b"} : f32[8, 64] from "m.py:8"
  %z = mul(%e, %g) : f32[8, 64] from "m.py:9"
  return %z, %c
}
""",
    "products": """func @f(%x: bf16[256, 512], %v: bf16[512, 512], %w: bf16[512, 512]) -> (bf16[256, 512], bf16[256, 512]) at tensor {
  %a = dot(%x, %v) {rule="a k, k b -> a b"} : bf16[256, 512] from "m.py:1"
  %b = dot(%x, %w) {rule="a k, k b -> a b"} : bf16[256, 512] from "m.py:2"
  return %a, %b
}
""",
    "maxima": """func @f(%x: f32[5, 37]) -> (f32[5], f32[37]) at tensor {
  %e = exp(%x) : f32[5, 37] from "m.py:1"
  %n = neg(%e) : f32[5, 37] from "m.py:2"
  %a = reduce(%n) {axes=[1], kind="max"} : f32[5] from "m.py:3"
  %b = reduce(%n) {axes=[0], kind="max"} : f32[37] from "m.py:4"
  return %a, %b
}
""",
    "compared": """func @f(%x: f32[67], %y: f32[67], %p: bool[67], %q: bool[67]) -> (bool[67], bool[67], f32[67], f32[67], bool[67]) at tensor {
  %a = le(%x, %y) : bool[67] from "m.py:1"
  %b = ge(%x, %y) : bool[67] from "m.py:2"
  %c = max(%x, %y) : f32[67] from "m.py:3"
  %d = round(%x) : f32[67] from "m.py:4"
  %e = xor(%p, %q) : bool[67] from "m.py:5"
  return %a, %b, %c, %d, %e
}
""",
    "conditions": """func @f(%x: f32[67], %p: bool[67]) -> (f32[67]) at tensor {
  %z = select(%p, %x, 1.0:f32) : f32[67] from "m.py:1"
  return %z
}
""",
}
TORCH = """import torch


def torch_select():
    return (lambda x: x[:, 2] + x.select(0, 1)[:3]), (torch.randn(3, 3),)


def torch_rsub():
    return (lambda x: torch.rsub(x, 3.0) * 2), (torch.randn(8),)


def torch_remainder():
    return (lambda x, y: torch.remainder(x, y)), (torch.randn(64), torch.randn(64))
"""
JAX = """import jax
import jax.numpy as jnp


def jax_power():
    return (lambda x: jax.lax.integer_pow(x, -3)), (jnp.arange(1.0, 9.0),)
"""
