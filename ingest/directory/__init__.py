"""Organ directories: a model as a folder with one small file for each tensor, for any script.

    layout    the names in an organ directory, and the file of one tensor
    manifest  manifest.json with readable metadata: its writer and its reader
    opening   organ directories opened, checked, and read as GGUF files
    extract   organ directories written from GGUF files or a registered model

A *stretch* is a range of bytes of `header.bin`. A *fresh* header is a new header, made if the header in the
folder does not fit its organs, or if the folder has no header.
"""
