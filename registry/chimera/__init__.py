"""From plans to bytes: what a file will be made of, and the stream that makes it.

plan      FilePlan: every byte of a file to be, as slices of blobs, literal bytes and zeros
layout    new files from a model's tensors: merged into one, or cut into shards
stream    a plan's bytes in order, decoded in parallel, each chunk checked
npy       an organ's values as a NumPy file, whole or from any byte on
place     a stream into a file that appears whole or not at all
"""
