"""Programs that are given what came from outside: processes of their own, under limits, ended however they end.

child      one confined process, its output bounded, its whole group killed in the end
confine    a program of its own: sets limits on itself, then becomes the program that it is given
"""
