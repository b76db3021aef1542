"""From plans to bytes: what a file will be made of, and the stream that makes it.

plan    what a file will be made of
layout  new files from a model's tensors: one file merged from shards, or shards cut at a size
stream  the bytes of a planned file, in order
npy     an organ as a NumPy file
place   a planned file onto the disk
"""
