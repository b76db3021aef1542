"""Contributions: uploads, submissions that are inspected and published, and pushes to remote registries.

cut_files    files cut into pieces for a push, and their remembered digests
findings     findings about a submission
inspection   the registry's side of a confined inspector
inspector    a separate program that parses submitted files and measures their tensors
intake       the jobs on submissions
manifest     the manifest of a submission and the description of a model
messages     the messages between a registry and a confined inspector
pieces       the places of the pieces of a manifest, and files read from them
proposal     the proposed catalog entry of a submitted model, its relation to registered models, and findings
push         push one model from its files to its page in a remote registry
sending      the pieces that a push sends, in packs, with retries
spool        the bytes of uploads, in a folder or in a bucket
submissions  submissions: made, published or withdrawn by contributors, reviewed by administrators
uploads      uploads: from opening to end, and their files
"""
