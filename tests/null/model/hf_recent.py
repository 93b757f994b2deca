"""config.json files of models of 2024 to 2026, as `hf_configs`, with the parameters of the language model alone: without encoders of images and
without the layers of multi-token prediction, which the makers' totals may count."""

from __future__ import annotations

from typing import Any

RECENT: dict[str, tuple[int, dict[str, Any]]] = {
    "gemma-3-4b-text": (3_880_263_168, {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0}}),
    "gemma-3-27b-text": (27_009_346_304, {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads":
        32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168, "sliding_window": 1024}),
    "gemma-3-270m": (268_098_176, {
        "model_type": "gemma3_text", "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size":
        2048, "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1, "sliding_window": 512, "vocab_size": 262144,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "use_bidirectional_attention": False}),
    "llama4-scout-text": (107_769_861_120, {
        "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
        "use_qk_norm": True, "vocab_size": 202048, "tie_word_embeddings": False, "no_rope_layers": []}),
    "llama4-maverick-text": (400_711_848_960, {
        "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts":
        128, "use_qk_norm": False, "vocab_size": 202048, "tie_word_embeddings": False, "no_rope_layers": []}),
    "qwen3-coder-480b": (480_154_875_392, {
        "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 6144, "intermediate_size": 8192, "mlp_only_layers": [], "moe_intermediate_size": 2560, "num_attention_heads": 96,
        "num_experts": 160, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8, "tie_word_embeddings": False,
        "vocab_size": 151936, "qkv_bias": False, "shared_expert_intermediate_size": 0}),
    "qwen3-next-80b": (79_674_391_296, {
        "model_type": "qwen3_next", "attention_bias": False, "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 256,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mlp_only_layers": [],
        "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
        "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
        "vocab_size": 151936}),
    "olmo3-7b": (7_298_011_136, {
        "model_type": "olmo3", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "tie_word_embeddings": False, "vocab_size": 100278, "sliding_window": 4096,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 8}),
    "command-r+": (103_810_674_688, {
        "model_type": "cohere", "attention_bias": False, "hidden_act": "silu", "hidden_size": 12288, "intermediate_size": 33792,
        "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8, "use_qk_norm": True, "vocab_size": 256000}),
    "command-r7b": (8_028_033_024, {
        "model_type": "cohere2", "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window":
        4096, "sliding_window_pattern": 4, "vocab_size": 256000, "layer_switch": 4, "use_qk_norm": False, "order_of_interleaved_layers":
        "local_attn_first"}),
    "command-a": (111_057_580_032, {
        "model_type": "cohere2", "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 12288,
        "intermediate_size": 36864, "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8, "sliding_window":
        4096, "sliding_window_pattern": 4, "vocab_size": 256000}),
    "glm-4-9b-hf": (9_399_951_360, {
        "model_type": "glm", "attention_bias": True, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size":
        13696, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False, "vocab_size": 151552}),
    "glm-4-32b-0414": (32_566_081_536, {
        "model_type": "glm4", "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144, "intermediate_size":
        23040, "num_attention_heads": 48, "num_hidden_layers": 61, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False, "vocab_size": 151552}),
    "glm-4.5": (352_797_829_024, {
        "model_type": "glm4_moe", "attention_bias": True, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "partial_rotary_factor": 0.5, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_attention_heads": 96,
        "num_key_value_heads": 8, "num_hidden_layers": 92, "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "use_qk_norm": True, "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "vocab_size":
        151552}),
    "glm-4.5-air": (106_852_251_264, {
        "model_type": "glm4_moe", "attention_bias": True, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "partial_rotary_factor": 0.5, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_attention_heads": 96,
        "num_key_value_heads": 8, "num_hidden_layers": 46, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 1, "use_qk_norm": False, "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "vocab_size":
        151552}),
    # 2 x 200064 x 6144 words; 70 x (5 x 6144 x 8192 + 8192) and 10 x (2 x 6144 x 8192 + 2 x 6144 x 1024) of attention; 80 x (32 x 3 x 6144 x 9216
    # + 32 x 6144) of experts; 161 norms of 6144
    "minimax-text-01": (456_089_655_296, {
        "model_type": "minimax_text_01", "hidden_act": "silu", "hidden_size": 6144, "intermediate_size": 9216, "head_dim": 128,
        "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80, "num_experts_per_tok": 2, "num_local_experts": 32,
        "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "rotary_dim": 64, "postnorm": True, "shared_intermediate_size": 0,
        "layernorm_full_attention_alpha": 3.5565588200778455, "layernorm_linear_attention_alpha": 3.5565588200778455,
        "tie_word_embeddings": False, "vocab_size": 200064}),
    "minimax-m2": (228_689_764_864, {
        "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_attention_heads": 48, "head_dim": 128,
        "num_hidden_layers": 62, "num_key_value_heads": 8, "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": True,
        "qk_norm_type": "per_layer", "vocab_size": 200064, "rotary_dim": 64, "attn_type_list": [1] * 62, "use_routing_bias": True,
        "scoring_func": "sigmoid", "shared_intermediate_size": 0, "mtp_transformer_layers": 1, "num_mtp_modules": 3, "use_mtp": True,
        "tie_word_embeddings": False}),
    "granite-4-h-small": (32_207_337_984, {
        "model_type": "granitemoehybrid", "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 768,
        "shared_intermediate_size": 1536, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "num_local_experts": 72, "num_experts_per_tok": 10, "tie_word_embeddings": True, "vocab_size": 100352, "mamba_n_heads": 128,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256,
        "mamba_conv_bias": True, "mamba_proj_bias": False, "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        "position_embedding_type": "nope"}),
    "mamba2-2.7b": (2_702_599_680, {
        "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64, "state_size": 128,
        "n_groups": 1, "conv_kernel": 4, "expand": 2, "chunk_size": 256, "vocab_size": 50288, "tie_word_embeddings": True}),
    "ernie-4.5-21b-a3b": (21_825_437_888, {
        "model_type": "ernie4_5_moe", "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288, "moe_intermediate_size":
        1536, "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1,
        "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4, "tie_word_embeddings": True, "vocab_size": 103424,
        "use_bias": False}),
    "exaone-4-32b": (32_003_216_384, {
        "model_type": "exaone4", "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27392,
        "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size":
        102400, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention", "sliding_attention",
        "sliding_attention", "full_attention"] * 16}),
    "stablelm-2-12b": (12_143_185_920, {
        "model_type": "stablelm", "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "partial_rotary_factor": 0.25, "qk_layernorm": True, "use_parallel_residual":
        True, "use_qkv_bias": False, "tie_word_embeddings": False, "vocab_size": 100352}),
    "qwen3.5-9b": (8_953_803_264, {
        "model_type": "qwen3_5_text", "attention_bias": False, "attn_output_gate": True, "full_attention_interval": 4, "head_dim": 256,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "layer_types": (["linear_attention"] * 3 +
        ["full_attention"]) * 8, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mlp_only_layers": [], "num_attention_heads": 16,
        "num_hidden_layers": 32, "num_key_value_heads": 4, "partial_rotary_factor": 0.25, "tie_word_embeddings": False, "vocab_size":
        248320}),
    "qwen3.5-35b-a3b": (34_660_610_688, {
        "model_type": "qwen3_5_moe_text", "attention_bias": False, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
        "hidden_size": 2048, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
        "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512, "tie_word_embeddings": False, "vocab_size": 248320,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}}),
    "ministral3-8b": (8_489_553_920, {
        "model_type": "ministral3", "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8, "sliding_window": None, "tie_word_embeddings":
        False, "vocab_size": 131072}),
    "mistral-small4-119b": (118_972_826_624, {
        "model_type": "mistral4", "first_k_dense_replace": 0, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
        "kv_lora_rank": 256, "moe_intermediate_size": 2048, "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 32,
        "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 32, "q_lora_rank": 1024, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 131072}),
    "kimi-linear-48b": (49_122_681_728, {
        "model_type": "kimi_linear", "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "intermediate_size": 9216,
        "kv_lora_rank": 512, "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
        "short_conv_kernel_size": 4}, "mla_use_nope": True, "moe_intermediate_size": 1024, "moe_layer_freq": 1, "num_attention_heads": 32,
        "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32, "num_shared_experts": 1,
        "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "tie_word_embeddings": False, "v_head_dim": 128, "vocab_size": 163840}),
    "deepseek-v3.2": (671_877_944_064, {
        "model_type": "deepseek_v32", "attention_bias": False, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "index_head_dim": 128,
        "index_n_heads": 64, "index_topk": 2048, "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "tie_word_embeddings": False, "v_head_dim": 128, "vocab_size": 129280}),
    "glm-5.2": (743_377_019_904, {
        "model_type": "glm_moe_dsa", "attention_bias": False, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 6144, "index_head_dim": 128,
        "index_n_heads": 32, "index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 3, "intermediate_size": 12288, "kv_lora_rank": 512,
        "indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 8,
        "num_hidden_layers": 78, "num_key_value_heads": 64, "num_nextn_predict_layers": 1, "q_lora_rank": 2048, "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64, "tie_word_embeddings": False, "v_head_dim": 256, "vocab_size": 154880}),
    "glm-4.7-flash": (29_943_393_920, {
        "model_type": "glm4_moe_lite", "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240, "kv_lora_rank": 512,
        "moe_intermediate_size": 1536, "n_routed_experts": 64, "n_shared_experts": 1, "num_attention_heads": 20, "num_experts_per_tok": 4,
        "num_hidden_layers": 47, "num_key_value_heads": 20, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "v_head_dim": 256, "vocab_size": 154880}),
}  # fmt: skip
