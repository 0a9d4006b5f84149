"""CPU rows: blocks, attention, pointwise and norms, cold compile, odd sizes, matmuls (C1 to C6)."""

from __future__ import annotations

from stack.measure.suite import Case

PROGRAMS = "stack.demos.cpu_rows"
PEERS = (
    "inductor,inductor{mode=max-autotune-no-cudagraphs},inductor{freezing=true},xla,"
    "tvm{seconds=3600,trials=512},eager"
)
QUICK_PEERS = "inductor,xla,eager"
POINTWISE_PEERS = "inductor,xla,eager"
PRODUCT_PEERS = "inductor,xla,eager"
LAYOUTS = ("columns", "transposed", "unaligned", "expanded", "slice")
COLD_PEERS = "inductor,xla,tvm"
QUICK_COLD_PEERS = "inductor,xla"


def cpu_cases(quick: bool = False) -> list[Case]:
    """Returns all cases of the CPU suite; with `quick`, only peers that compile in seconds."""
    return [
        *_blocks(quick),
        *_attention(),
        *_pointwise(),
        *_cold(quick),
        *_awkward(),
        *_products(),
    ]


def _blocks(quick: bool) -> list[Case]:
    return [
        Case(
            "C1",
            {"model": model, "seq": seq, "dtype": dtype},
            f"{PROGRAMS}:block",
            {"model": model, "seq": seq, "dtype": dtype},
            frontend="torch",
            native=("jax",),
            peers=QUICK_PEERS if quick else PEERS,
            quick=seq == 128 and dtype == "f32",
        )
        for seq in (128, 512, 2048)
        for dtype in ("f32", "bf16")
        for model in ("gpt2", "llama")
    ]


def _attention() -> list[Case]:
    """Returns the attention cases: from matmuls and a softmax, and as the framework's own call."""
    return [
        Case(
            "C2",
            {"source": source, "mask": mask, "seq": seq, "dtype": dtype},
            f"{PROGRAMS}:attention",
            {"source": source, "mask": mask, "seq": seq, "dtype": dtype},
            frontend="torch",
            native=("jax",),
            peers=POINTWISE_PEERS,
            quick=seq == 512 and dtype == "f32" and mask == "none",
            work=(seq + 1) / (2 * seq) if mask == "causal" else 1.0,
        )
        for seq in (512, 1024, 2048, 4096)
        for dtype in ("f32", "bf16")
        for mask in ("none", "causal")
        for source in ("naive", "library")
    ]


def _pointwise() -> list[Case]:
    shapes = [
        *((name, 3072) for name in ("gelu_erf", "gelu_tanh")),
        *((name, width) for width in (768, 3072) for name in ("softmax", "layer_norm")),
        *((name, 768) for name in ("rms_norm", "rope")),
    ]
    return [
        Case(
            "C3",
            {"function": name, "shape": f"512x{width}"},
            f"{PROGRAMS}:pointwise",
            {"name": name, "width": width},
            frontend="torch",
            native=("jax",),
            peers=POINTWISE_PEERS,
            quick=name in ("gelu_tanh", "layer_norm")
            and width == (3072 if "gelu" in name else 768),
        )
        for name, width in shapes
    ]


def _cold(quick: bool) -> list[Case]:
    peers = QUICK_COLD_PEERS if quick else COLD_PEERS
    one = {"model": "gpt2", "seq": 128}
    other = {"model": "llama", "seq": 128}
    frozen = {"gradients": False}
    return [
        Case(
            "C4",
            {"program": "gpt2 block", "graph": "first and second"},
            f"{PROGRAMS}:block",
            one,
            frontend="torch",
            native=("jax",),
            peers=peers,
            kind="cold",
            quick=True,
            second=other,
        ),
        Case(
            "C4",
            {"program": "gpt2 block without gradients", "graph": "first and second"},
            f"{PROGRAMS}:block",
            one | frozen,
            frontend="torch",
            peers=peers,
            kind="cold",
            quick=True,
            second=other | frozen,
        ),
        Case(
            "C4",
            {"program": "12 equal blocks", "graph": "first"},
            f"{PROGRAMS}:blocks",
            {"count": 12, "seq": 128},
            frontend="torch",
            native=("jax",),
            peers=peers,
            kind="cold",
        ),
    ]


def _awkward() -> list[Case]:
    """Returns the cases with odd sizes, thread counts and strided arrays, compared with eager."""
    ways = [
        *((511, 769, "dense", threads) for threads in (0, 1, 4)),
        (1, 1, "dense", 0),
        *((512, 768, layout, threads) for layout in LAYOUTS for threads in (0, 1)),
    ]
    return [
        Case(
            "C5",
            {"function": name, "shape": f"{rows}x{width}", "layout": layout, "threads": threads},
            f"{PROGRAMS}:awkward",
            {"name": name, "rows": rows, "width": width, "layout": layout},
            frontend="torch",
            peers="eager",
            threads=threads,
        )
        for name in ("product", "softmax", "layer_norm", "gelu_erf", "relu", "sum")
        for rows, width, layout, threads in ways
    ]


def _products() -> list[Case]:
    """Returns the matmul cases: those in transformer blocks by number of tokens, and squares."""
    layers = [
        *((768, n) for n in (256, 768, 2048, 2304, 3072)),
        *((n, 768) for n in (2048, 3072)),
    ]
    shapes = [(rows, *layer) for rows in (1, 16, 128, 512, 2048) for layer in layers]
    shapes += [(n, n, n) for n in (512, 2048)]
    return [
        Case(
            "C6",
            {"rows": rows, "depth": depth, "columns": columns, "dtype": dtype},
            f"{PROGRAMS}:product",
            {"rows": rows, "depth": depth, "columns": columns, "dtype": dtype},
            frontend="torch",
            native=("jax",),
            peers=PRODUCT_PEERS,
            quick=rows in (1, 512) and (depth, columns) == (768, 3072),
        )
        for rows, depth, columns in shapes
        for dtype in ("f32", "bf16", "i8")
    ]
