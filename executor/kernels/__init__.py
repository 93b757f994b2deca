"""The kernels that an op runs on a device: GEMMs, attention and convolutions of its shapes, and a memory-bound kernel for each variant of
`sim.cost.variant`."""
