"""Organ directories: a model as a folder of small files, one a tensor, that any script can read and write.

    layout      the names in such a folder, and which file a tensor gets
    organfile   a tensor's file: its own little header, then the bytes
    metadata    GGUF metadata as JSON and back, exactly
    conventions GGUF types for JSON values that come without one
    jsontext    JSON from outside, bounded before it is parsed
    fields      the fields of a JSON object, checked as they are taken; every reason collected
    manifest    what manifest.json says, and how it is written
    parse       manifest.json to that, whoever wrote it
    folder      files below an open folder, by checked paths, never through a link
    virtual     a GGUF file that is read out of the folder without ever being written
    opening     a folder, checked as a whole, to its virtual files
    staging     a folder that appears whole or not at all
    contents    what is taken apart: GGUF files, or a model of the registry
    extract     taking apart: contents to a folder

A *stretch* is some consecutive bytes of `header.bin`. A *fresh* header is one that is written anew because the one that
came with the folder does not fit its organs any more, or because none came.
"""
