"""Layers of transformers on one rank: each function makes parts, with their kernels forward and backward."""
