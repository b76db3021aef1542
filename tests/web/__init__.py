"""The catalog in a browser."""
