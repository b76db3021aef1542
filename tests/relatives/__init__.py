"""Who is related to whom."""
