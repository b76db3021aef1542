"""Tests of computed organs: purified, merged with adapters, encoded."""
