"""The models of `sim.model` as real torch modules: the same blocks, the same parts, the same parameters in the same order."""
