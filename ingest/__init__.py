"""What comes in, from a path to rows and blobs.

sources        what there is to ingest
files          files from outside: opened so that they stay the same while they are read
directory      organ directories: a model as a folder of small files, one a tensor
dissect        take a file apart on paper
hashing        one pass over a file: its SHA-256, its header's
tasks          what the threads of an ingest do
pipeline       the coordinator of one model's ingest, in the caller's thread
measuring      measuring without a registry: files in, a measurement for every tensor out
records        what a run found out, as the record that the catalog registers
add            `add_model`: add one model to a registry, local or remote, from a script
service        `ingest`: one model from its files to its rows
transplant     composing without a registry
jobs           jobs: what was asked for and takes longer than a request, and the runner that does it
contributions  what contributors send
"""
