"""Whole networks over sound."""
