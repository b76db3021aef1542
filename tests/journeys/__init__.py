"""Whole ways through."""
