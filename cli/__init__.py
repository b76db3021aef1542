"""The command `organ`: words to service to print. One file a group of commands; nothing else here does work.

Results go to stdout, progress and hints to stderr. Exit 0; 1 when something failed or was refused; 2 for wrong usage.
"""
