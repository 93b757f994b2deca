"""What a framework does by default: how it writes layers as kernels, shares the work out, and what its host spends. One TOML each in `known/`."""
