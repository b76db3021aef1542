"""From plans to files."""
