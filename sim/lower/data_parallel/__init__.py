"""Data parallelism: gradients averaged over replicas (DDP), optimizer state and gradients sharded (ZeRO-1, -2), parameters sharded too
(FSDP)."""
