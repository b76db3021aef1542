"""Files and blobs that nobody meant: a case is a number, and the number gives the same bytes on every machine.

    __main__        the command: `python -m tests.faults.fuzzing headers --cases 1000000`
    run             many cases in child processes, watched from outside
    worker          one child: its limits, its cases, what it reports
    tally           what came of the cases: counts, failures, the slowest, the peak of memory
    refusal_texts   the refusals that a module can speak, read out of its source
    targets         what can be fuzzed, by name
    edits           damage to any bytes
    header_parts    a GGUF file in pieces, and where its numbers stand when it is put together
    header_seeds    the small files that are damaged
    header_edits    damage to the pieces
    header_promises what must hold of a file that is accepted
    header_check    the target "headers"
    blob_seeds      the small blobs that are damaged
    blob_edits      damage to stored forms and to the rows that point at them
    frame_attacks   Zstandard frames that this store never writes
    blob_check      the target "blobs", and what must hold of a damaged one
    faulty_readers  readers with faults, which the harness must catch

A **case** is made from a **seed** (something sound) by **edits**. It ends as accepted or as a refusal; anything else is
a **failure**: an exception that is no refusal, a wrong byte, too long, too much memory, a process that dies.
"""
