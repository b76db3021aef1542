"""Organ directories: a model as a folder with one small file for each tensor, for any script.

    layout    the names in an organ directory, and the file of one tensor
    metadata  convert GGUF metadata to readable JSON, and back
    jsontext  read JSON from outside with limits of size, depth and memory
    manifest  manifest.json: read and write it
    folder    files below an open folder by checked relative paths
    opening   open an organ directory, check it, and read it as GGUF files
    extract   write GGUF files or a registered model as an organ directory

A *stretch* is a range of bytes of `header.bin`. A *fresh* header is a new one: the header in the folder does not fit
its organs, or the folder has none.
"""
