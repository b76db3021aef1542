"""A registry elsewhere, over HTTP.

    address     the address of a remote registry, and its names as parts of URLs and of paths
    connection  requests to one registry elsewhere
    tokens      the tokens for registries elsewhere
    shape       the shapes of answers: what a registry elsewhere says is looked at before it is used
    composing   compose in a remote registry: plans and jobs run there; the file is fetched
    remote      `RemoteRegistry`: a registry elsewhere, with the interface of `LocalRegistry`
    locked      the file of a lock, made here of what a registry elsewhere has
    answers     answers of a registry elsewhere to the values that scripts get of any
    fetching    fetch a file, or only its header
    shown       what a remote registry shows: versions, locks, verdicts
    files       check what a fetched file holds, organ by organ, and cut a fetched model into shards

`Connection` knows nothing of models: what stands on it does.
"""
