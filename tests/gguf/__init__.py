"""Tests of the GGUF container."""
