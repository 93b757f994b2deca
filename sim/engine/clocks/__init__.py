"""Steps' ends without a trace, through an agenda: for all programs."""
