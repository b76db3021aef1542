"""The HTTP server of `organ serve`: gunicorn's processes with an event loop of our own.

processes   the parent process: it starts the workers and, if wanted, the process that runs jobs
worker      the worker process: its event loop, threads and limits
connection  HTTP/1.1 over one connection, in the event loop of a worker
gateway     the border between a parsed request and the WSGI application
scheduling  fair sharing of threads and download places among clients
"""
