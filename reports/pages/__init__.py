"""One file for each page: its content, in order."""
