"""Figures for pages and notebooks: one file for each figure or family of figures."""
