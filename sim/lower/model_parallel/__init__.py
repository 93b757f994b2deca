"""A layer over several ranks: tensor, context and expert parallelism."""
