"""Every SELECT, as a named function that takes a session.

blobs    where bytes are, who needs them
models   models by name, their files, parts and placements
organs   organs by digest, with their measurements
"""
