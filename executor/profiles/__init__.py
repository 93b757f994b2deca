"""A torch profile in the simulator's words: events, classes of ops, host threads, what runs beside them."""
