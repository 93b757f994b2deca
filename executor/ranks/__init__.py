"""The ranks of a run: started, watched and ended together; and one rank inside a run, with its device, group, clock and progress."""
