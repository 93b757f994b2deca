"""What an op runs on a device: products, attention and convolutions by shape; kernels whose time is their bytes, one for each variant of `sim.cost.variant`."""
