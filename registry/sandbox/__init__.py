"""Programs that read untrusted data run in confined processes: files, network, processes and resources are limited.

process        start a confined process, feed it, bound its output, and kill everything that it started
protections    what this kernel can enforce, and what follows where it cannot
landlock       access to files, TCP ports, and signals to other processes
seccomp        the system calls that a confined process may make
confine        the program that sets all of this on itself, and then becomes the program that it is given

`docs/design/sandbox.md` says what holds and what does not. `landlock`, `seccomp` and `confine` import the standard
library alone, and little of it: they are loaded anew for every confined process.
"""
