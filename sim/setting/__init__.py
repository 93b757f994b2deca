"""Binds a plan to its model, its framework and a machine: checks it, finds ranks with equal places, and prices it."""
