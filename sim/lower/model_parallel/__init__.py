"""Layers split over several ranks: tensor, context and expert parallelism."""
