"""Tests, in the same folders as the product."""
