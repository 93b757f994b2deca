"""Reads a torch profile with the simulator's names: events, classes of ops, host threads, and what runs beside them."""
