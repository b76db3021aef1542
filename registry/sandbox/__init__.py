"""Programs that read untrusted data run in confined processes: files, network, processes and resources are limited.

    process      one confined process: what it may use, what it prints
    protections  what this kernel can enforce on a confined process, and what follows where it cannot
    landlock     Landlock: the access control of Linux that a process sets on itself
    seccomp      the system calls that a confined process may make
    confine      a program of its own: confines itself, then becomes the program that it is given

`docs/design/sandbox.md` says what holds and what does not. `landlock`, `seccomp` and `confine` import the standard
library alone, and little of it: they are loaded anew for every confined process.
"""
