"""One file a figure, or a family of them, for pages and notebooks."""
