"""Programs that read untrusted data run in confined processes: files, network, processes and resources are limited.

    process      one confined process: what it may use, what it prints
    protections  what this kernel can enforce on a confined process, and what follows where it cannot
    landlock     Landlock: the access control of Linux that a process sets on itself
    seccomp      the system calls that a confined process may make
    confine      a program that confines itself, then executes the program of its command line

`docs/design/sandbox.md` says what is protected and what is not. `landlock`, `seccomp` and `confine` only import a small
part of the standard library, because every confined process loads them.
"""
