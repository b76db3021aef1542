"""What contributors send, chunk by chunk, until a model is made of it.

spool      the files in which the bytes lie, and the lock of each
sessions   an upload: opened, received, finished, cancelled
tidying    what has expired, what a crash left, what is needed no more

An upload's bytes are plain and unchecked: nothing of them is in the blob store, and nobody but their sender is told of
them. Who reads them asks `registry.catalog.queries.uploads` where they lie.
"""
