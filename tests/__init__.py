"""Tests, laid out as the house is."""
