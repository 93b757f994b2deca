"""Why a step takes as long as it does, and what would change it."""
