"""What is not allowed is refused by one sentence that names it."""
