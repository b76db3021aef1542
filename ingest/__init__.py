"""What comes in, from a path to rows and blobs.

sources     files, folders, globs, split sets, organ directories, the hub's cache: what there is to ingest
opening     a source to its open files, in order
files       one open file, checked before and after it is read
directory   a model as a folder of small files, one a tensor: written, checked, read as if it were a GGUF
dissect     a header into the pieces that become blobs, and what is odd about it
buffers     memory that goes round
hashing     one pass over a file: its digest, and each piece's
storing     pieces to blobs: encode, write, sync, over threads
tasks       the threads of an ingest, what they do and tell
interrupts  Ctrl-C at a point where nothing is half done
pipeline    their coordinator: the whole journey of one model, with bounded memory
measuring   measurements without a registry
records     what a run found out, as the catalog takes it
service     `ingest`: many models, one outcome each
transplant  a plan over files instead of registered models
composed    the file that it makes, which reads like a plain one
placing     a file that is put together onto the disk
pushing     models on their way to a registry elsewhere: only what it lacks travels
submissions what contributors sent, from manifest to model or refusal
jobs        a queue of what takes longer than a request, and its runner
"""
