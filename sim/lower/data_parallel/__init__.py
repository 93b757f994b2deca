"""Replicas, and what they share out: gradients averaged (DDP), optimizer state and gradients split (ZeRO-1, -2), parameters too (FSDP)."""
