"""Language models of Hugging Face with their default attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from stack.demos.suite import Setting

Target = tuple[nn.Module, tuple[Any, ...]]
LAYERS = 2
VOCABULARY = 32000
SHORT = 8192  # vocabulary of decoders on a CPU, where the embedding would be most of the model
# gradients are compared: no dropout, under any name that configs use
NO_DROPOUT = dict.fromkeys(
    (
        *("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob", "dropout"),
        *("hidden_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "activation_dropout"),
        *("dropout_rate", "layerdrop", "encoder_layerdrop", "decoder_layerdrop", "drop_path_rate"),
        *("embedding_dropout", "embd_dropout", "resid_dropout", "feat_proj_dropout"),
        *("final_dropout", "classifier_dropout", "seq_classif_dropout", "qa_dropout"),
    ),
    0.0,
)


@dataclass(frozen=True)
class Recipe:
    """A model by the names of its classes; `small` are its sizes on a CPU, `large` on a GPU."""

    config: str
    model: str
    small: dict[str, Any]
    large: dict[str, Any] = field(default_factory=dict[str, Any])
    shared: dict[str, Any] = field(default_factory=dict[str, Any])
    tokens: tuple[tuple[int, int], tuple[int, int]] = ((1, 128), (1, 2048))


def make_config(name: str, values: dict[str, Any]) -> Any:
    """Returns a config without dropout."""
    transformers.logging.set_verbosity_error()
    kind = getattr(transformers, name)
    plain = kind()
    quiet = {k: v for k, v in NO_DROPOUT.items() if hasattr(plain, k)}
    return kind(**{**quiet, **values})


class Output(nn.Module):
    """Wraps a model to return one tensor: logits or last hidden state; with labels, the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
        if labels is not None:
            return self.model(*args, labels=labels, **kwargs).loss
        found = self.model(*args, **kwargs)
        logits = getattr(found, "logits", None)
        return found.last_hidden_state if logits is None else logits


class Causal(Output):
    """Next-token prediction; labels are the tokens themselves, which the model shifts."""

    def forward(self, tokens: Any) -> Any:
        if self.training:
            return super().forward(tokens, labels=tokens, use_cache=False)
        return super().forward(tokens, use_cache=False)


class Seq2Seq(Output):
    """An encoder and a decoder."""

    def forward(self, tokens: Any, targets: Any) -> Any:
        if self.training:
            return super().forward(tokens, labels=targets, use_cache=False)
        return super().forward(tokens, decoder_input_ids=targets, use_cache=False)


def _make(recipe: Recipe, setting: Setting) -> Target:
    sizes = {**recipe.shared, **(recipe.large if setting.large else recipe.small)}
    config = make_config(recipe.config, sizes)
    model = getattr(transformers, recipe.model)(config)
    shape = recipe.tokens[setting.large]
    tokens = torch.randint(3, config.vocab_size, shape)
    if recipe.model.endswith("ForCausalLM") or recipe.model.endswith("LMHeadModel"):
        return Causal(model), (tokens,)
    if recipe.model.endswith("ConditionalGeneration"):
        return Seq2Seq(model), (tokens, torch.randint(3, config.vocab_size, shape))
    return Output(model), (tokens,)


def _decoder(family: str, small: dict[str, Any], large: dict[str, Any], **more: Any) -> Recipe:
    """Returns a recipe for Llama's relatives, whose configs use the same names for sizes."""
    more = {"num_hidden_layers": LAYERS, "pad_token_id": 0, **more}
    return Recipe(
        str(more.pop("config", f"{family}Config")),
        f"{family}ForCausalLM",
        {"vocab_size": SHORT, **small},
        {"vocab_size": VOCABULARY, **large},
        more,
    )


def _sizes(width: int, ffn: int, heads: int, groups: int = 0, **more: Any) -> dict[str, Any]:
    found = {"hidden_size": width, "intermediate_size": ffn, "num_attention_heads": heads, **more}
    return {**found, "num_key_value_heads": groups} if groups else found


def _encoder(family: str, batch: int, **more: Any) -> Recipe:
    """Returns a recipe for BERT's relatives in their base size: the defaults of their configs."""
    shared = {"num_hidden_layers": LAYERS, **more}
    tokens = ((1, 128), (batch, 512))
    return Recipe(f"{family}Config", f"{family}Model", {}, {}, shared, tokens)


RECIPES: dict[str, Recipe] = {
    # 1B and 8B
    "llama": _decoder("Llama", _sizes(2048, 8192, 32, 8), _sizes(4096, 14336, 32, 8)),
    "mistral": _decoder(
        "Mistral", _sizes(2048, 7168, 16, 4), _sizes(4096, 14336, 32, 8), sliding_window=1024
    ),
    "qwen2": _decoder("Qwen2", _sizes(896, 4864, 14, 2), _sizes(3584, 18944, 28, 4)),
    "qwen3": _decoder("Qwen3", _sizes(1024, 3072, 16, 8), _sizes(2560, 9728, 32, 8), head_dim=128),
    "phi3": _decoder("Phi3", _sizes(2048, 5504, 32, 32), _sizes(3072, 8192, 32, 32)),
    "gemma2": _decoder("Gemma2", *(2 * [_sizes(2304, 9216, 8, 4)]), head_dim=256),
    "gemma3": _decoder(
        "Gemma3", *(2 * [_sizes(1152, 6912, 4, 1)]), head_dim=256, config="Gemma3TextConfig"
    ),
    "gpt2": Recipe("GPT2Config", "GPT2LMHeadModel", {"n_layer": LAYERS}, {"n_layer": LAYERS},
                   tokens=((1, 128), (8, 1024))),
    "cohere": _decoder("Cohere", _sizes(1024, 4096, 16, 4), _sizes(4096, 14336, 32, 8)),
    "neox": _decoder("GPTNeoX", _sizes(1024, 4096, 16), _sizes(2048, 8192, 16)),
    "opt": _decoder(
        "OPT",
        {"hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12,
         "word_embed_proj_dim": 768},
        {"hidden_size": 2048, "ffn_dim": 8192, "num_attention_heads": 32,
         "word_embed_proj_dim": 2048},
    ),
    "falcon": _decoder(
        "Falcon",
        {"hidden_size": 1024, "num_attention_heads": 16},
        {"hidden_size": 4544, "num_attention_heads": 71},
        multi_query=True,
    ),
    "bloom": Recipe(
        "BloomConfig", "BloomForCausalLM", {"hidden_size": 1024, "n_head": 16},
        {"hidden_size": 2048, "n_head": 16}, {"vocab_size": VOCABULARY, "n_layer": LAYERS},
    ),
    "t5": Recipe(
        "T5Config", "T5ForConditionalGeneration", {}, {},
        {"vocab_size": VOCABULARY, "d_model": 768, "d_ff": 3072, "num_heads": 12,
         "num_layers": LAYERS, "decoder_start_token_id": 0},
        ((1, 128), (8, 512)),
    ),
    "bert": _encoder("Bert", 32),
    "roberta": _encoder("Roberta", 32, max_position_embeddings=514),  # positions begin at 2
    "distilbert": Recipe(
        "DistilBertConfig", "DistilBertModel", {}, {}, {"n_layers": LAYERS}, ((1, 128), (32, 512))
    ),
    "olmoe": _decoder(
        "Olmoe",
        _sizes(1024, 512, 16, 16, num_experts=8),
        _sizes(2048, 1024, 16, 16, num_experts=64),
        num_experts_per_tok=2,
    ),
    "mamba": Recipe(
        "MambaConfig", "MambaForCausalLM", {}, {},
        {"vocab_size": VOCABULARY, "hidden_size": 768, "num_hidden_layers": LAYERS},
        ((1, 32), (1, 64)),  # without its own kernels it is a loop over steps
    ),
    "mamba2": Recipe(
        "Mamba2Config", "Mamba2ForCausalLM", {}, {},
        {"vocab_size": VOCABULARY, "hidden_size": 768, "num_hidden_layers": LAYERS,
         "head_dim": 64, "num_heads": 24, "n_groups": 1},
        ((1, 256), (1, 2048)),
    ),
}  # fmt: skip
# the same models with naive attention: matmul, softmax, matmul
for _name in ("llama", "gemma3"):
    RECIPES[f"{_name}_written"] = dataclasses.replace(
        RECIPES[_name], shared={**RECIPES[_name].shared, "attn_implementation": "eager"}
    )
PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    name: functools.partial(_make, recipe) for name, recipe in RECIPES.items()
}
