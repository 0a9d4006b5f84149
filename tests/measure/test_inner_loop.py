"""The inner loop of a product, found in assembly."""

from __future__ import annotations

from stack.measure.inner_loop import InnerLoop, inner_loop, kernels_of

LISTING = """
   0:\tpush   %rbp
  10:\tvmovups (%rdi),%zmm0
  14:\tvmovaps %zmm0,-0x40(%rbx)
  18:\tjne    10 <k+0x10>
  20:\txor    %edx,%edx
  22:\tnopw   0x0(%rax,%rax,1)
  30:\tvmovaps -0x40(%r10),%zmm12
  38:\tvfmadd231ps %zmm12,%zmm16,%zmm11
  40:\tvfmadd231ps (%rcx){1to16},%zmm16,%zmm10  # block.py:3
  44:\tvmovups %zmm10,(%rax){%k1}
  48:\tlea    0x200(%r10),%r10
  50:\tcmp    %rdx,0x8(%rsp)
  58:\tjne    30 <k+0x30>
  60:\tcmp    $0x7b,%r14
  68:\tjne    20 <k+0x20>
"""


def test_the_loop_that_multiplies_is_counted() -> None:
    found = inner_loop(LISTING)
    assert found == InnerLoop(multiplies=2, loads=3, stores=1, others=2)
    assert str(found) == "2 multiply, 3 load, 1 store, 2 other"


def test_tiles_multiply() -> None:
    loop = "0:\ttileloadd (%rax,%rcx,1),%tmm4\n8:\ttdpbf16ps %tmm4,%tmm5,%tmm0\n10:\tjb 0 <k>\n"
    assert inner_loop(loop) == InnerLoop(1, 1, 0, 1)


def test_of_equal_loops_the_one_that_loads_least_is_counted() -> None:
    row = "0:\tvfmadd231ps (%rax),%zmm16,%zmm11\n8:\tjne 0 <k>\n"
    tile = "10:\tvfmadd231ps %zmm1,%zmm16,%zmm11\n18:\tjne 10 <k>\n"
    assert inner_loop(row + tile) == inner_loop(tile) == InnerLoop(1, 0, 0, 1)


def test_a_loop_without_products_is_none() -> None:
    copies = LISTING[: LISTING.index("  20:")]
    assert inner_loop(copies) is None
    assert inner_loop("; no disassembly") is None


def test_a_jump_ahead_is_no_loop() -> None:
    assert inner_loop("0:\tvfmadd231ps %zmm1,%zmm2,%zmm3\n4:\tjge    8 <k+0x8>\n8:\tret\n") is None


def test_kernels_of_a_stage() -> None:
    assert kernels_of("// ---- a\nx\n// ---- b\ny\n") == {"a": "x", "b": "y\n"}
    assert kernels_of("") == {}
