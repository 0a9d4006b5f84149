"""Models of Hugging Face `transformers`, tiny and with random weights; nothing is downloaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

VOCAB = 64
TEXT = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = TEXT | {
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ENCODER = TEXT | {"intermediate_size": 64, "max_position_embeddings": 64}
STAGES = {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1]}
GPT2 = {
    "vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "use_cache": False,
}  # fmt: skip
MAMBA = {
    "vocab_size": VOCAB, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2,
    "use_cache": False,
}  # fmt: skip
VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip

# name: (class, configuration class, its arguments, kind of input)
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER, "text"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, "text"),
    "bert": ("BertModel", "BertConfig", ENCODER, "text"),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", DECODER | {"num_local_experts": 4}, "text"),
    "mamba": ("MambaForCausalLM", "MambaConfig", MAMBA, "text"),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, "pair"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER, "text"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", DECODER | {"head_dim": 8}, "text"),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", DECODER | {"head_dim": 8}, "text"),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", DECODER | {"head_dim": 8}, "text"),
    "vit": ("ViTModel", "ViTConfig", VIT, "image"),
    "resnet": (
        "ResNetForImageClassification", "ResNetConfig", STAGES | {"embedding_size": 8}, "image",
    ),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", STAGES, "image"),
}  # fmt: skip


def make(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model in eval mode, and keyword arguments for it."""
    import transformers

    model, config, fields, kind = MODELS[name]
    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**fields)).eval()
    return module, inputs(kind)


def inputs(kind: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def tokens(length: int) -> torch.Tensor:
        return torch.randint(3, VOCAB, (2, length), generator=generator)

    if kind == "text":
        return {"input_ids": tokens(12)}
    if kind == "pair":
        return {"input_ids": tokens(12), "decoder_input_ids": tokens(6)}
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}


def main_output(out: Any) -> torch.Tensor:
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def gradients(module: Any, call: Callable[..., Any], given: Any) -> dict[str, torch.Tensor]:
    """Gradients of the mean square distance of the output from random numbers.

    Not from zero: the mean square of a normalised output is constant, so that what is left of its
    gradients is rounding.
    """
    module.zero_grad()
    output = main_output(call(**given))
    target = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    (output - target).square().mean().backward()
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def exact_gradients(module: Any, given: Any) -> dict[str, torch.Tensor]:
    """The `gradients` of eager in f64."""
    module = copy.deepcopy(module).double()
    module.set_experts_implementation("eager")  # torch's grouped product has no f64
    given = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    return gradients(module, module, given)
