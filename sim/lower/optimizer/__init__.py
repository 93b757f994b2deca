"""The update: which tensors a rank owns, by which kernels each optimizer updates them, and when and where ranks agree."""
