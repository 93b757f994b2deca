"""Readers of Hugging Face configs by architecture: gated decoders, GPT-like ones, experts, and what is no decoder."""
