"""Whole networks over tokens: decoders, encoders, both, and what came before them."""
