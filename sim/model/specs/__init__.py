"""What models are, before anything splits them: sizes and habits, one frozen value for each family."""
