"""Organ directories: a model as a folder of small files, one a tensor, that any script can read and write.

    layout    the names in an organ directory, and the file of one tensor
    metadata  GGUF metadata as JSON that people read, and back
    jsontext  JSON from outside: its size
    manifest  manifest.json: what it says, how it is written
    folder    files below an open folder by checked relative paths
    opening   an organ directory, checked as a whole, to the GGUF files that it gives
    extract   take GGUF files or a registered model apart into an organ directory

A *stretch* is some consecutive bytes of `header.bin`. A *fresh* header is one that is written anew because the one that
came with the folder does not fit its organs any more, or because none came.
"""
