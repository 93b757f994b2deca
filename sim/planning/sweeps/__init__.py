"""Every plan of a space: memory first, then bounds, then simulation; kept as they come."""
