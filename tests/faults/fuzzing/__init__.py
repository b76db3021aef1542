"""Fuzzing of files and blobs: a case is a number, and the number gives the same bytes on every machine.

`tests/faults/hostile/fuzz.py` is the suite that runs them.

    run             many cases in child processes, supervised from outside
    worker          one child: its limits, its cases, what it reports
    tally           results of the cases: counts, failures, the slowest case, the peak of memory
    targets         what can be fuzzed, by name
    edits           damage to any bytes
    header_parts    a GGUF file in parts, and the positions of its numbers when it is assembled
    header_seeds    the small files that are damaged
    header_edits    damage to the parts
    header_promises the invariants of an accepted file
    header_check    the target "headers"
    blob_seeds      the small blobs that are damaged
    blob_edits      damage to stored forms and to the rows that point at them
    frame_attacks   Zstandard frames that this store never writes
    blob_check      the target "blobs", and the invariants of a damaged blob
    faulty_readers  readers with faults, which the harness must catch

A **case** is made from a **seed** (a valid file or blob) by **edits**. It ends accepted or refused; anything else is
a **failure**: an exception that is not a refusal, a wrong byte, too much time or memory, a process that dies.
"""
