"""Rows and plans as plain values."""
