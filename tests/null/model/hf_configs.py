"""config.json files as Hugging Face serves them (only what differs from the class's defaults, and what describes sizes), with the
parameters that the model page counts in the safetensors files."""

from __future__ import annotations

from typing import Any

CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    "mistral-7b-v0.1": (7_241_732_096, {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "vocab_size": 32000}),
    "mixtral-8x7b": (46_702_792_704, {
        "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 32000}),
    "qwen2.5-0.5b": (494_032_768, {
        "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 24,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "sliding_window": 32768, "tie_word_embeddings": True,
        "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936}),
    "qwen3-32b": (32_762_123_264, {
        "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 25600,
        "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8, "sliding_window": None, "tie_word_embeddings": False,
        "vocab_size": 151936}),
    "qwen3-30b-a3b": (30_532_122_624, {
        "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 6144, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "tie_word_embeddings": False,
        "vocab_size": 151936}),
    "qwen1.5-moe-a2.7b": (14_315_784_192, {
        "model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
        "moe_intermediate_size": 1408, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632, "use_sliding_window": False, "vocab_size": 151936}),
    "deepseek-v2-lite": (15_706_484_224, {
        "model_type": "deepseek_v2", "attention_bias": False, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 10944, "kv_lora_rank": 512, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
        "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "tie_word_embeddings": False, "v_head_dim": 128,
        "vocab_size": 102400}),
    "gpt-oss-20b": (20_914_757_184, {
        "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128, "tie_word_embeddings": False,
        "vocab_size": 201088}),
    "gpt2-xl": (1_557_611_200, {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "model_type": "gpt2", "n_ctx": 1024,
        "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257}),
    "gpt-neox-20b": (20_554_567_680, {
        "model_type": "gpt_neox", "hidden_act": "gelu_fast", "hidden_size": 6144, "intermediate_size": 24576, "max_position_embeddings": 2048,
        "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_pct": 0.25, "tie_word_embeddings": False, "vocab_size": 50432}),
    "gpt-neo-1.3b": (1_315_575_808, {
        "model_type": "gpt_neo", "activation_function": "gelu_new", "attention_types": [[["global", "local"], 12]], "hidden_size": 2048,
        "intermediate_size": None, "max_position_embeddings": 2048, "num_heads": 16, "num_layers": 24, "vocab_size": 50257, "window_size": 256}),
    "gpt-j-6b": (6_050_882_784, {
        "model_type": "gptj", "activation_function": "gelu_new", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28,
        "n_positions": 2048, "resid_pdrop": 0.0, "rotary_dim": 64, "tie_word_embeddings": False, "vocab_size": 50400}),
    "starcoderbase": (15_517_456_384, {
        "model_type": "gpt_bigcode", "activation_function": "gelu", "multi_query": True, "n_embd": 6144, "n_head": 48, "n_inner": 24576,
        "n_layer": 40, "n_positions": 8192, "resid_pdrop": 0.1, "vocab_size": 49152}),
    "starcoder2-3b": (3_030_371_328, {
        "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 24,
        "num_hidden_layers": 30, "num_key_value_heads": 2, "residual_dropout": 0.1, "sliding_window": 4096, "use_bias": True,
        "vocab_size": 49152}),
    "bloom-7b1": (7_069_016_064, {
        "model_type": "bloom", "hidden_dropout": 0.0, "hidden_size": 4096, "n_layer": 30, "num_attention_heads": 32, "vocab_size": 250880}),
    "falcon-7b": (6_921_720_704, {
        "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 4544, "multi_query": True, "new_decoder_architecture": False,
        "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71, "parallel_attn": True, "vocab_size": 65024}),
    "falcon-40b": (41_303_293_952, {
        "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 8192, "new_decoder_architecture": True,
        "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True, "vocab_size": 65024}),
    "opt-6.7b": (6_658_473_984, {
        "model_type": "opt", "activation_function": "relu", "do_layer_norm_before": True, "dropout": 0.1, "ffn_dim": 16384, "hidden_size": 4096,
        "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 50272, "word_embed_proj_dim": 4096}),
    "phi-2": (2_779_683_840, {
        "model_type": "phi", "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": False, "resid_pdrop": 0.1,
        "tie_word_embeddings": False, "vocab_size": 51200}),
    "phi-3-mini-4k": (3_821_079_552, {
        "model_type": "phi3", "attention_bias": False, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "sliding_window": 2047, "tie_word_embeddings": False,
        "vocab_size": 32064}),
    "phi-3.5-moe": (41_873_153_344, {
        "model_type": "phimoe", "attention_bias": True, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 6400,
        "lm_head_bias": True, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 16, "tie_word_embeddings": False, "vocab_size": 32064}),
    "gemma-2b": (2_506_172_416, {
        "model_type": "gemma", "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 16384,
        "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "vocab_size": 256000}),
    "gemma-2-9b": (9_241_705_984, {
        "model_type": "gemma2", "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584,
        "intermediate_size": 14336, "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8, "sliding_window": 4096,
        "vocab_size": 256000}),
    "gemma-3-1b": (999_885_952, {
        "model_type": "gemma3_text", "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "sliding_window": 512, "sliding_window_pattern": 6,
        "vocab_size": 262144}),
    "bert-base-uncased": (110_106_428, {
        "architectures": ["BertForPreTraining"], "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "intermediate_size": 3072, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
        "type_vocab_size": 2, "vocab_size": 30522}),
    "roberta-base": (124_697_433, {
        "architectures": ["RobertaForMaskedLM"], "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 514,
        "model_type": "roberta", "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 1, "vocab_size": 50265}),
    "t5-base": (222_903_552, {
        "model_type": "t5", "d_ff": 3072, "d_kv": 64, "d_model": 768, "dropout_rate": 0.1, "num_heads": 12, "num_layers": 12,
        "relative_attention_num_buckets": 32, "vocab_size": 32128}),
    "flan-t5-base": (247_577_856, {
        "model_type": "t5", "d_ff": 2048, "d_kv": 64, "d_model": 768, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 12,
        "num_heads": 12, "num_layers": 12, "relative_attention_num_buckets": 32, "tie_word_embeddings": False, "vocab_size": 32128}),
    "vit-base-patch16-224": (86_567_656, {
        "model_type": "vit", "hidden_size": 768, "id2label": {str(i): f"class {i}" for i in range(1000)}, "image_size": 224,
        "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "patch_size": 16}),
    "efficientnet-b4": (19_341_616, {
        "model_type": "efficientnet", "depth_coefficient": 1.8, "width_coefficient": 1.4, "hidden_dim": 1792, "image_size": 380,
        "kernel_sizes": [3, 3, 5, 3, 5, 5, 3], "id2label": {str(i): f"class {i}" for i in range(1000)}}),
    "convnext-tiny-224": (28_589_128, {
        "model_type": "convnext", "depths": [3, 3, 9, 3], "hidden_sizes": [96, 192, 384, 768], "image_size": 224, "patch_size": 4,
        "id2label": {str(i): f"class {i}" for i in range(1000)}}),
    "resnet-50": (25_557_032, {
        "model_type": "resnet", "depths": [3, 4, 6, 3], "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048],
        "id2label": {str(i): f"class {i}" for i in range(1000)}, "layer_type": "bottleneck"}),
    "mpt-7b": (6_649_286_656, {
        "model_type": "mpt", "attn_config": {"alibi": True, "attn_type": "multihead_attention"}, "d_model": 4096, "expansion_ratio": 4,
        "max_seq_len": 2048, "n_heads": 32, "n_layers": 32, "no_bias": True, "vocab_size": 50432}),
    "internlm-7b": (7_321_948_160, {
        "model_type": "internlm", "bias": True, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
        "num_hidden_layers": 32, "tie_word_embeddings": False, "vocab_size": 103168}),
    "internlm2-7b": (7_737_708_544, {
        "model_type": "internlm2", "bias": False, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 92544}),
    "nemotron-4-15b-shape": (15_628_775_424, {
        "model_type": "nemotron", "hidden_act": "relu2", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 48,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "vocab_size": 256000}),
    "olmo-7b": (6_888_095_744, {
        "model_type": "olmo", "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": False, "vocab_size": 50304}),
    "olmo-2-7b": (7_298_617_344, {
        "model_type": "olmo2", "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": False, "vocab_size": 100352}),
    "olmoe-1b-7b": (6_919_161_856, {
        "model_type": "olmoe", "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024, "num_attention_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16, "tie_word_embeddings": False,
        "vocab_size": 50304}),
    "stablelm-2-1.6b": (1_644_515_328, {
        "model_type": "stablelm", "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
        "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "tie_word_embeddings": False, "use_qkv_bias": True,
        "vocab_size": 100352}),
    "command-r-v01": (34_980_831_232, {
        "model_type": "cohere", "attention_bias": False, "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 22528,
        "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "use_qk_norm": False, "vocab_size": 256000}),
    "dbrx-base": (131_596_523_520, {
        "model_type": "dbrx", "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000}, "d_model": 6144,
        "ffn_config": {"ffn_hidden_size": 10752, "moe_jitter_eps": 0.01, "moe_num_experts": 16, "moe_top_k": 4}, "max_seq_len": 32768,
        "n_heads": 48, "n_layers": 40, "tie_word_embeddings": False, "vocab_size": 100352}),
    "qwen-7b": (7_721_324_544, {
        "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "no_bias": True, "num_attention_heads": 32,
        "num_hidden_layers": 32, "tie_word_embeddings": False, "vocab_size": 151936}),
    "chatglm3-6b": (6_243_584_000, {
        "model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True, "ffn_hidden_size": 13696, "hidden_size": 4096,
        "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 28,
        "padded_vocab_size": 65024, "rmsnorm": True}),
    "baichuan-7b": (7_000_559_616, {
        "model_type": "baichuan", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
        "num_hidden_layers": 32, "tie_word_embeddings": False, "vocab_size": 64000}),
    "nemotron-3-nano": (31_577_940_288, {
        "model_type": "nemotron_h", "chunk_size": 128, "conv_kernel": 4, "head_dim": 128, "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "mamba_head_dim": 64, "mamba_num_heads": 64,
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_groups": 8, "n_routed_experts": 128,
        "n_shared_experts": 1, "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2,
        "ssm_state_size": 128, "tie_word_embeddings": False, "vocab_size": 131072}),
    "exaone-3.0-7.8b": (7_818_448_896, {
        "model_type": "exaone", "activation_function": "silu", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_layers": 32, "tie_word_embeddings": False, "vocab_size": 102400}),
    "seed-oss-36b": (36_151_104_512, {
        "model_type": "seed_oss", "attention_bias": True, "attention_out_bias": False, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "tie_word_embeddings": False, "vocab_size": 155136}),
    "distilbert-base-uncased": (66_985_530, {
        "architectures": ["DistilBertForMaskedLM"], "dim": 768, "dropout": 0.1, "hidden_dim": 3072, "max_position_embeddings": 512,
        "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "tie_weights_": True, "vocab_size": 30522}),
}  # fmt: skip
"""(parameters, config) by model."""
