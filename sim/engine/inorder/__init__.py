"""The engine in program order: finds when each step ends and looks at every op once. For programs where it is known beforehand what
shares a link."""
