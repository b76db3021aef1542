"""Contributions: uploads, submissions that are inspected and published, and pushes to remote registries.

findings     findings about a submission
inspection   the registry's side of a confined inspector
inspector    a separate program that parses submitted files and measures their tensors
manifest     the manifest of a submission and the description of a model
messages     the messages between a registry and a confined inspector
pieces       the places of the pieces of a manifest, and files read from them
proposal     the proposed catalog entry of a submitted model, its relation to registered models, and findings
push         push one model from its files to its page in a remote registry
sending      what a push sends: files cut into pieces, in packs, with retries
submissions  submissions: made, published or withdrawn by contributors, inspected, reviewed by administrators
uploads      uploads: from opening to end, and their bytes in a folder or in a bucket
"""
