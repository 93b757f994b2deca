"""Models that read pictures beside words."""
