"""Kernels whose time is their bytes, as eager PyTorch runs them: one for each variant of `sim.cost.variant`."""
