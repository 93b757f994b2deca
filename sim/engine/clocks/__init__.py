"""The engine without a trace, for all programs: an agenda of timed actions finds when each step ends."""
