"""Computed organs: purified, merged with adapters, encoded."""
