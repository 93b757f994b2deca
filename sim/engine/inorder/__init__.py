"""Steps' ends in program order: every op looked at once, for programs in which what shares a link is known beforehand."""
