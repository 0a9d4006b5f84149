"""Models of Hugging Face `transformers` at small widths, with random weights; no downloads."""

from __future__ import annotations

import functools
from typing import Any

import torch
from strangers.report_row import Absent
from torch import Tensor, nn

VOCAB = 96
TEXT = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
GPT = {
    "vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = GROUPED | {
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "output_router_logits": False,
}  # fmt: skip
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
BART = {
    "vocab_size": VOCAB, "d_model": 32, "max_position_embeddings": 64,
    "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2,
}  # fmt: skip
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PATCHES = SMALL | {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1], "image_size": 64}
WINDOWS = {
    "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip
SPEECH = SMALL | {
    "vocab_size": 32, "intermediate_size": 64, "conv_dim": [16, 16, 16],
    "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False,
}  # fmt: skip
WHISPER = {k: v for k, v in BART.items() if k != "max_position_embeddings"} | {
    "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32,
}  # fmt: skip
TOWERS = {
    "text_config": {k: v for k, v in TEXT.items() if k != "pad_token_id"},
    "vision_config": PATCHES,
    "projection_dim": 16,
}

# name: (class, configuration class, its arguments, kind of inputs, result)
MODELS: dict[str, tuple[str, str, dict[str, Any], str, str]] = {
    # decoders of text
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, "text", "logits"),
    "mistral": (
        "MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 5}, "text", "logits",
    ),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", GROUPED, "text", "logits"),
    "gemma2": (
        "Gemma2ForCausalLM", "Gemma2Config", GROUPED | {"sliding_window": 5}, "text", "logits",
    ),
    "gemma3": (
        "Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED | {"sliding_window": 5}, "text", "logits",
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, "text", "logits"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED, "text", "logits"),
    "phi": ("PhiForCausalLM", "PhiConfig", TEXT | {"partial_rotary_factor": 0.5}, "text", "logits"),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", TEXT, "text", "logits"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT, "text", "logits"),
    "gpt_neo": (
        "GPTNeoForCausalLM", "GPTNeoConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
            "attention_types": [[["global", "local"], 1]], "window_size": 5,
            "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
        },
        "text", "logits",
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT, "text", "logits"),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", GPT | {"rotary_dim": 4}, "text", "logits"),
    "codegen": (
        "CodeGenForCausalLM", "CodeGenConfig", GPT | {"rotary_dim": 4, "n_ctx": 64},
        "text", "logits",
    ),
    "opt": (
        "OPTForCausalLM", "OPTConfig",
        TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}, "padded", "logits",
    ),
    "bloom": (
        "BloomForCausalLM", "BloomConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "padded", "logits",
    ),
    "falcon": (
        "FalconForCausalLM", "FalconConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        "text", "logits",
    ),
    "falcon_alibi": (
        "FalconForCausalLM", "FalconConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "alibi": True, "new_decoder_architecture": False,
        },
        "text", "logits",
    ),
    "mpt": (
        "MptForCausalLM", "MptConfig",
        {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
        "text", "logits",
    ),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", GROUPED, "text", "logits"),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED, "text", "logits"),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED, "text", "logits"),
    "cohere": ("CohereForCausalLM", "CohereConfig", GROUPED, "text", "logits"),
    "granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED, "text", "logits"),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", GROUPED, "text", "logits"),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", GROUPED, "text", "logits"),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED, "text", "logits"),
    "diffllama": ("DiffLlamaForCausalLM", "DiffLlamaConfig", GROUPED, "text", "logits"),
    "xlnet": (
        "XLNetModel", "XLNetConfig",
        {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
        "text", "last_hidden_state",
    ),
    # mixtures of experts
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", EXPERTS, "text", "logits"),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", EXPERTS, "text", "logits"),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", EXPERTS, "text", "logits"),
    "gpt_oss": (
        "GptOssForCausalLM", "GptOssConfig", EXPERTS | {"sliding_window": 5}, "text", "logits",
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM", "DeepseekV3Config",
        TEXT | {
            "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
            "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
        },
        "text", "logits",
    ),
    # recurrent networks and state spaces
    "mamba": (
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
        "text", "logits",
    ),
    "mamba2": (
        "Mamba2ForCausalLM", "Mamba2Config",
        {
            "vocab_size": VOCAB, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2,
            "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
        "text", "logits",
    ),
    "rwkv": (
        "RwkvForCausalLM", "RwkvConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 32, "attention_hidden_size": 32,
            "num_hidden_layers": 2, "context_length": 64,
        },
        "text", "logits",
    ),
    "recurrent_gemma": (
        "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
        GROUPED | {
            "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
        "text", "logits",
    ),
    "xlstm": (
        "xLSTMForCausalLM", "xLSTMConfig",
        {
            "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2,
            "chunk_size": 4,
        },
        "text", "logits",
    ),
    # encoders of text
    "bert": ("BertModel", "BertConfig", TEXT, "padded", "last_hidden_state"),
    "roberta": ("RobertaModel", "RobertaConfig", TEXT, "padded", "last_hidden_state"),
    "deberta_v2": (
        "DebertaV2Model", "DebertaV2Config",
        TEXT | {
            "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm", "share_att_key": True,
        },
        "padded", "last_hidden_state",
    ),
    "albert": (
        "AlbertModel", "AlbertConfig", TEXT | {"embedding_size": 16}, "padded", "last_hidden_state",
    ),
    "electra": (
        "ElectraModel", "ElectraConfig", TEXT | {"embedding_size": 16}, "padded",
        "last_hidden_state",
    ),
    "distilbert": (
        "DistilBertModel", "DistilBertConfig",
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        "padded", "last_hidden_state",
    ),
    "mobilebert": (
        "MobileBertModel", "MobileBertConfig",
        TEXT | {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
        "padded", "last_hidden_state",
    ),
    "convbert": (
        "ConvBertModel", "ConvBertConfig",
        TEXT | {"embedding_size": 32, "conv_kernel_size": 3}, "padded", "last_hidden_state",
    ),
    "squeezebert": (
        "SqueezeBertModel", "SqueezeBertConfig", TEXT | {"embedding_size": 32}, "padded",
        "last_hidden_state",
    ),
    "fnet": ("FNetModel", "FNetConfig", TEXT, "text", "last_hidden_state"),
    "funnel": (
        "FunnelModel", "FunnelConfig",
        {
            "vocab_size": VOCAB, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8,
            "d_inner": 64, "num_decoder_layers": 1,
        },
        "padded", "last_hidden_state",
    ),
    "nystromformer": (
        "NystromformerModel", "NystromformerConfig",
        TEXT | {"segment_means_seq_len": 12, "num_landmarks": 4, "conv_kernel_size": 5},
        "text", "last_hidden_state",
    ),
    "longformer": (
        "LongformerModel", "LongformerConfig", TEXT | {"attention_window": 4}, "padded",
        "last_hidden_state",
    ),
    "modernbert": (
        "ModernBertModel", "ModernBertConfig",
        TEXT | {"local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1,
                "sep_token_id": 2},
        "padded", "last_hidden_state",
    ),
    "esm": (
        "EsmModel", "EsmConfig",
        TEXT | {"position_embedding_type": "rotary", "mask_token_id": 3}, "padded",
        "last_hidden_state",
    ),
    # from sequence to sequence
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, "pair", "logits"),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5, "pair", "logits"),
    "longt5": (
        "LongT5ForConditionalGeneration", "LongT5Config",
        T5 | {"local_radius": 4, "global_block_size": 4,
              "encoder_attention_type": "transient-global"},
        "pair", "logits",
    ),
    "switch_transformers": (
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
        T5 | {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
            "router_jitter_noise": 0.0},
        "pair", "logits",
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART, "pair", "logits"),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", BART, "pair", "logits"),
    "marian": ("MarianMTModel", "MarianConfig", BART, "pair", "logits"),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config", BART, "pair", "logits"),
    # images
    "vit": ("ViTModel", "ViTConfig", PATCHES, "image", "last_hidden_state"),
    "deit": ("DeiTModel", "DeiTConfig", PATCHES, "image", "last_hidden_state"),
    "beit": (
        "BeitModel", "BeitConfig", PATCHES | {"use_relative_position_bias": True}, "image",
        "last_hidden_state",
    ),
    "dinov2": ("Dinov2Model", "Dinov2Config", PATCHES, "image", "last_hidden_state"),
    "swin": ("SwinModel", "SwinConfig", WINDOWS, "image", "last_hidden_state"),
    "swinv2": ("Swinv2Model", "Swinv2Config", WINDOWS, "image", "last_hidden_state"),
    "resnet": (
        "ResNetModel", "ResNetConfig", STAGES | {"embedding_size": 8}, "photo", "pooler_output",
    ),
    "regnet": (
        "RegNetModel", "RegNetConfig", STAGES | {"embedding_size": 8, "groups_width": 8},
        "photo", "pooler_output",
    ),
    "convnext": ("ConvNextModel", "ConvNextConfig", STAGES, "photo", "pooler_output"),
    "convnextv2": ("ConvNextV2Model", "ConvNextV2Config", STAGES, "photo", "pooler_output"),
    "mobilenet_v2": (
        "MobileNetV2Model", "MobileNetV2Config", {"depth_multiplier": 0.35, "image_size": 64},
        "photo", "pooler_output",
    ),
    "efficientnet": (
        "EfficientNetModel", "EfficientNetConfig",
        {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320, "image_size": 64},
        "photo", "pooler_output",
    ),
    "segformer": (
        "SegformerForSemanticSegmentation", "SegformerConfig",
        {
            "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16,
            "num_attention_heads": [1, 2, 2, 4], "num_labels": 4,
        },
        "photo", "logits",
    ),
    "pvt_v2": (
        "PvtV2Model", "PvtV2Config",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
         "num_attention_heads": [1, 2, 2, 4]},
        "photo", "last_hidden_state",
    ),
    "poolformer": (
        "PoolFormerModel", "PoolFormerConfig",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, "photo", "last_hidden_state",
    ),
    "focalnet": (
        "FocalNetModel", "FocalNetConfig",
        {
            "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1],
            "hidden_sizes": [16, 32], "focal_levels": [2, 2], "focal_windows": [3, 3],
        },
        "image", "last_hidden_state",
    ),
    "cvt": (
        "CvtModel", "CvtConfig",
        {"embed_dim": [16, 16, 32], "depth": [1, 2, 3], "num_heads": [1, 2, 4]}, "photo",
        "last_hidden_state",
    ),
    "mobilevitv2": (
        "MobileViTV2Model", "MobileViTV2Config",
        {"width_multiplier": 0.25, "image_size": 64, "n_attn_blocks": [1, 1, 1]}, "photo",
        "last_hidden_state",
    ),
    "hiera": (
        "HieraModel", "HieraConfig",
        {
            "image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 4, 8],
        },
        "photo", "last_hidden_state",
    ),
    "timesformer": (
        "TimesformerModel", "TimesformerConfig", PATCHES | {"num_frames": 3}, "video",
        "last_hidden_state",
    ),
    # images with text
    "clip": ("CLIPModel", "CLIPConfig", TOWERS, "captioned", "logits_per_image"),
    "siglip": ("SiglipModel", "SiglipConfig", TOWERS, "captioned", "logits_per_image"),
    # sounds and series
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, "speech", "logits"),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, "wave", "logits"),
    "hubert": ("HubertModel", "HubertConfig", SPEECH, "wave", "last_hidden_state"),
    "wavlm": (
        "WavLMModel", "WavLMConfig", SPEECH | {"num_buckets": 16, "max_bucket_distance": 32},
        "wave", "last_hidden_state",
    ),
    "audio_spectrogram_transformer": (
        "ASTModel", "ASTConfig",
        SMALL | {"intermediate_size": 64, "patch_size": 8, "num_mel_bins": 16, "max_length": 32},
        "spectrum", "last_hidden_state",
    ),
    "patchtst": (
        "PatchTSTForPrediction", "PatchTSTConfig",
        {
            "num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 4,
            "prediction_length": 8, "d_model": 32, "num_attention_heads": 4, "ffn_dim": 64,
            "num_hidden_layers": 2, "do_mask_input": False,
        },
        "series", "prediction_outputs",
    ),
    "decision_transformer": (
        "DecisionTransformerModel", "DecisionTransformerConfig",
        {
            "state_dim": 6, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4,
            "max_ep_len": 32,
        },
        "decisions", "action_preds",
    ),
}  # fmt: skip


class Result(nn.Module):
    """A model called by names of inputs, of which one result is wanted."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], result: str) -> None:
        super().__init__()
        self.model, self.names, self.result = model, names, result

    def forward(self, *args: Tensor) -> Tensor:
        return getattr(self.model(**dict(zip(self.names, args))), self.result)


def inputs(kind: str) -> dict[str, Tensor]:
    """A small batch."""

    def tokens(length: int) -> Tensor:
        return torch.randint(4, VOCAB, (2, length))

    if kind == "text":
        return {"input_ids": tokens(12)}
    if kind == "padded":
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[1, 9:] = 0
        return {"input_ids": tokens(12), "attention_mask": mask}
    if kind == "pair":
        return {"input_ids": tokens(12), "decoder_input_ids": tokens(6)}
    if kind == "captioned":
        return {"input_ids": tokens(12), "pixel_values": torch.randn(2, 3, 32, 32)}
    if kind == "speech":
        return {"input_features": torch.randn(2, 16, 64), "decoder_input_ids": tokens(6)}
    if kind == "decisions":
        return {
            "states": torch.randn(2, 5, 6), "actions": torch.randn(2, 5, 3),
            "rewards": torch.randn(2, 5, 1), "returns_to_go": torch.randn(2, 5, 1),
            "timesteps": torch.arange(5).expand(2, 5).contiguous(),
            "attention_mask": torch.ones(2, 5, dtype=torch.long),
        }  # fmt: skip
    name, *shape = {
        "image": ("pixel_values", 3, 32, 32),
        "photo": ("pixel_values", 3, 64, 64),
        "video": ("pixel_values", 3, 3, 32, 32),
        "wave": ("input_values", 1600),
        "spectrum": ("input_values", 32, 16),
        "series": ("past_values", 32, 3),
    }[kind]
    batch = 4 if kind == "photo" else 2  # batch norms of two pixels amplify rounding
    return {str(name): torch.randn(batch, *(int(n) for n in shape))}


def without_dropout(config: Any) -> Any:
    """The configuration, and those inside of it, with all rates of dropout at 0."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            without_dropout(value)
        elif "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
        elif "drop" in key and isinstance(value, list):
            setattr(config, key, [0.0] * len(value))
    return config


def make(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model in evaluation mode, and its arguments. Absent where this release has it not."""
    import transformers

    model, config, fields, kind, result = MODELS[name]
    for wanted in (model, config):
        if not hasattr(transformers, wanted):
            raise Absent(f"transformers {transformers.__version__} has no {wanted}")
    made = without_dropout(getattr(transformers, config)(**fields))
    made.use_cache = False
    module = getattr(transformers, model)(made)
    given = inputs(kind)
    return Result(module, tuple(given), result).eval(), tuple(given.values())


FACTORIES = {name: functools.partial(make, name) for name in MODELS}
