"""How far predictions are from published, measured steps: rows -> plans -> seconds -> errors."""
