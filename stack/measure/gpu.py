"""GPU rows of the bench: attention, matmuls, norms, losses, whole blocks, cold compile."""

from __future__ import annotations

from typing import Any

from stack.measure.suite import Case

ATTENTION = "stack.demos.gpu_attention:attention"
ROWS = "stack.demos.gpu_rows"
BLOCK = "stack.demos.gpu_blocks:block"
TUNED = "inductor{mode=max-autotune-no-cudagraphs}"
TOKENS = 16384
VARIANTS = (
    *("causal", "alibi", "softcap", "window", "gqa", "document", "differential", "bias"),
    *("sigmoid", "learned", "finite_mask", "sink_column", "sink_floor", "softmax_plus_one"),
)
DECODES = ((8, 32768), (64, 4096), (1, 32768))
# bound by tensor cores, or by memory if each channel has its own window
CONVOLUTIONS = (
    *("resnet_3x3", "resnet_1x1", "resnet_stem", "vgg_3x3", "unet_up", "gan_up", "resnext"),
    *("mobilenet", "convnext", "whisper_stem", "conformer", "video"),
)
WRITTEN = (
    *("causal", "full", "t5_bias", "boolean_mask", "cast_by_hand", "long_keys", "fire", "1x1_wide"),
    *("instance_norm", "sum_of_middle", "argmax_of_middle"),
)
MOVES = ("gather", "embedding_gradient", "least_of_middle", "diagonal_product")
# rows, columns and depth of matmuls in Llama-3 8B and 70B
PRODUCTS = (
    *((16, 4096, 4096), (16, 28672, 4096), (64, 4096, 14336), (128, 6144, 4096)),
    *((128, 28672, 8192), (256, 8192, 8192), (512, 4096, 4096), (1024, 28672, 4096)),
    *((2048, 4096, 4096), (2048, 14336, 4096), (4096, 4096, 4096), (4096, 4096, 14336)),
    *((8192, 8192, 8192), (8192, 28672, 8192), (16384, 4096, 4096), (16384, 8192, 28672)),
)
QUICK_PRODUCTS = ((16, 4096, 4096), (512, 4096, 4096), (2048, 14336, 4096), (8192, 8192, 8192))
NORMS = ((32768, 1024), (32768, 4096), (32768, 16384), (8192, 65536), (8192, 131072))
GRADIENTS = ((32768, 1024), (16384, 8192), (4096, 32768))
MODELS = ("llama3-8b", "gpt2", "bert", "vit", "moe", "mamba2")


def gpu_cases(quick: bool = False) -> list[Case]:
    """Returns all cases of the GPU suite; `quick` leaves out peers that tune for long."""
    return [
        *_attention("G1", 128),
        *_attention("G2", 64),
        *_derived(quick),
        *_decode(),
        *_products(quick),
        *_epilogues(quick),
        *_norms(),
        *_losses(),
        *_blocks(quick),
        *_cold(quick),
        *_convolutions(),
        *_moves(),
        *_written(),
    ]


def _case(
    row: str, what: dict[str, Any], spec: str, options: dict[str, Any], peers: str, quick: bool
) -> Case:
    return Case(row, what, spec, options, frontend="torch", peers=peers, quick=quick)


def _attention(row: str, width: int) -> list[Case]:
    return [
        _case(
            row,
            {"attention": variant, "D": width, "seq": seq},
            ATTENTION,
            {"variant": variant, "batch": TOKENS // seq, "heads": 16, "seq": seq, "width": width},
            # the naive source stores all scores: op by op it is too slow for long sequences
            "eager,inductor,xla,rivals" if seq <= 4096 else "xla,rivals",
            quick=seq == 4096,
        )
        for seq in (512, 1024, 2048, 4096, 8192, 16384)
        for variant in ("causal", "full")
    ]


def _tuned(quick: bool) -> str:
    """Returns Inductor with its search, to append to a list of peers; "" if `quick`."""
    return "" if quick else f",{TUNED}"


def _derived(quick: bool) -> list[Case]:
    options = {"batch": 4, "heads": 16, "seq": 4096, "width": 128}
    return [
        _case(
            "G4",
            {"attention": variant, "shape": "4x16x4096x128"},
            ATTENTION,
            {"variant": variant, **options},
            "eager,inductor,xla,rivals" + _tuned(quick),
            quick=True,
        )
        for variant in VARIANTS
    ]


def _decode() -> list[Case]:
    return [
        _case(
            "G5",
            {"decode": "GQA 32/8, D 128", "shape": f"{batch}x{keys}"},
            "stack.demos.gpu_masks:decode",
            {"batch": batch, "keys": keys},
            "eager,inductor,rivals",
            quick=True,
        )
        for batch, keys in DECODES
    ]


def _products(quick: bool) -> list[Case]:
    tuned = () if quick else ((2048, 14336, 4096),)
    vector = _case(
        "G6",
        {"M": 1, "N": 8192, "K": 8192, "right": "row-major"},
        f"{ROWS}:gemm",
        {"m": 1, "n": 8192, "k": 8192, "right": "row-major"},
        "eager,inductor,xla",
        quick=True,
    )
    return [vector, *_weights(tuned)]


def _weights(tuned: tuple[tuple[int, int, int], ...]) -> list[Case]:
    return [
        _case(
            "G6",
            {"M": m, "N": n, "K": k},
            f"{ROWS}:gemm",
            {"m": m, "n": n, "k": k},
            "eager,xla,rivals" + (f",{TUNED}" if (m, n, k) in tuned else ""),
            quick=(m, n, k) in QUICK_PRODUCTS,
        )
        for m, n, k in PRODUCTS
    ]


def _epilogues(quick: bool) -> list[Case]:
    return [
        _case(
            "G7",
            {"product": name, "M": 8192},
            f"{ROWS}:epilogue",
            {"name": name},
            "eager,inductor,xla" + _tuned(quick),
            quick=name in ("bias_gelu", "swiglu_pair"),
        )
        for name in ("bias_gelu", "swiglu_pair", "residual_norm", "row_quantize")
    ]


def _norms() -> list[Case]:
    shapes = [(name, *shape) for name in ("rms_norm", "layer_norm") for shape in NORMS]
    shapes.append(("add_rms_norm", 32768, 4096))
    forward = [
        _case(
            "G11",
            {"norm": name, "shape": f"{rows}x{width}"},
            f"{ROWS}:norm",
            {"name": name, "rows": rows, "width": width},
            "eager,inductor,xla,rivals",
            quick=(rows, width) in ((32768, 4096), (8192, 65536)),
        )
        for name, rows, width in shapes
    ]
    backward = [
        _case(
            "G12",
            {"norm": name, "shape": f"{rows}x{width}", "mode": "backward"},
            f"{ROWS}:norm",
            {"name": name, "rows": rows, "width": width, "mode": "backward"},
            "eager,inductor,rivals",
            quick=width == 8192,
        )
        for name in ("rms_norm", "layer_norm")
        for rows, width in GRADIENTS
    ]
    return [*forward, *backward]


def _losses() -> list[Case]:
    softmax = [
        _case(
            "G13",
            {"function": "softmax", "shape": f"{rows}x{width}"},
            f"{ROWS}:softmax",
            {"rows": rows, "width": width},
            "eager,inductor,xla,rivals",
            quick=width == 8192,
        )
        for rows, width in ((16384, 8192), (16384, 131072))
    ]
    entropy = [
        _case(
            "G13",
            {"function": "cross_entropy", "shape": f"{rows}x{vocab}", "mode": mode},
            f"{ROWS}:cross_entropy",
            {"rows": rows, "vocab": vocab, "mode": mode},
            "eager,inductor,xla,rivals",
            quick=vocab == 131072,
        )
        for rows, vocab, mode in (
            *((8192, 131072, "forward"), (8192, 131072, "train")),
            (4096, 256000, "train"),
        )
    ]
    last = _case(
        "G14",
        {"function": "linear_cross_entropy", "shape": "8192x4096x131072", "mode": "train"},
        f"{ROWS}:linear_cross_entropy",
        {},
        "eager,inductor,rivals",
        quick=True,
    )
    return [*softmax, *entropy, last]


def _blocks(quick: bool) -> list[Case]:
    return [
        _case(
            "G20",
            {"model": model, "mode": mode},
            BLOCK,
            {"model": model, "mode": mode},
            "eager,inductor,xla,rivals" + _tuned(quick),
            quick=model == "llama3-8b",
        )
        for model in MODELS
        for mode in ("forward", "train")
    ]


def _cold(quick: bool) -> list[Case]:
    return [
        Case(
            "G21",
            {"program": f"{model} block", "graph": "first"},
            BLOCK,
            {"model": model},
            frontend="torch",
            peers="inductor,xla" if quick or model != "llama3-8b" else f"inductor,{TUNED},xla",
            kind="cold",
            quick=False,
        )
        for model in ("llama3-8b", "gpt2")
    ]


def _convolutions() -> list[Case]:
    return [
        _case(
            "G22",
            {"convolution": name, "dtype": dtype},
            "stack.demos.gpu_convs:convolution",
            {"name": name, "dtype": dtype},
            "eager,inductor,xla",
            quick=True,
        )
        for name in CONVOLUTIONS
        for dtype in ("bfloat16", "float32")
    ]


def _moves() -> list[Case]:
    return [
        _case(
            "G23",
            {"move": name},
            "stack.demos.gpu_moves:move",
            {"name": name},
            "eager,inductor,xla",
            quick=True,
        )
        for name in MOVES
    ]


def _written() -> list[Case]:
    return [
        _case(
            "G24",
            {"written": name},
            "stack.demos.gpu_written:written",
            {"name": name},
            "eager,inductor,inductor{mode=reduce-overhead}",
            quick=True,
        )
        for name in WRITTEN
    ]
