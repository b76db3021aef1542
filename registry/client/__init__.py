"""A registry elsewhere, over HTTP.

    address     where a registry is: an origin, which is scheme, host and port
    connection  requests to one registry elsewhere
    tokens      the tokens for registries elsewhere
    shape       the shapes of answers: what a registry elsewhere says is looked at before it is used
    names       names from a registry elsewhere as parts of addresses and of paths
    jobs        jobs of a remote registry: started, awaited, and their results
    composing   composing in a registry elsewhere
    remote      `RemoteRegistry`: a registry elsewhere, with the interface of `Registry`
    locked      the file of a lock, made here of what a registry elsewhere has
    answers     answers of a registry elsewhere to the values that scripts get of any
    checking    what a fetched file holds, where its own digest does not prove it
    cutting     a model from elsewhere in shards: its whole file is fetched and checked, then cut here
    fetching    a file from a registry elsewhere onto the disk
    heads       the header of a file that is elsewhere: only its beginning is fetched
    partial     a file that is still being fetched
    reported    reports of a registry elsewhere, as the documents that a folder gives
    shown       what a registry elsewhere shows

`Connection` knows nothing of models: what stands on it does.
"""
