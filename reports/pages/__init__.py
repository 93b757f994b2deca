"""One file a page: what it says, and in which order."""
