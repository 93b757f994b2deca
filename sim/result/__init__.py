"""What a prediction says: its figures, how sure they are, what a plan's keys do not change, and how values print."""
