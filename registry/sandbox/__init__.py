"""Confined processes for programs that read untrusted data: their files, network, processes and resources are limited.

    process      runs a confined process with limits, and reads its output
    protections  the protections that this kernel offers, and the consequences of missing ones
    landlock     Landlock: access control of Linux that a process sets on itself
    seccomp      the system calls that a confined process may make
    confine      a program that confines itself, then executes the program of its command line

`docs/design/sandbox.md` lists what is protected and what is not. `landlock`, `seccomp` and `confine` only import a
small part of the standard library, because every confined process loads them.
"""
