"""Contributions: uploads, submissions that are inspected and published, and pushes to remote registries.

findings     findings about a submission
inspection   ask a confined inspector what submitted files say, and to measure their tensors
inspector    a program of its own that parses and measures what contributors send
intake       the jobs on submissions
loads        what a push sends: files cut into pieces, pieces packed into loads
manifest     the manifest of a submission and the description of a model
messages     what a registry and the confined inspector of a submission say to each other
pieces       locate the pieces of a manifest
proposal     what a submitted model would be listed as, and how it relates to registered models
push         push one model from its files to its page in a remote registry
submissions  submissions: made, published or withdrawn by contributors, reviewed by administrators
uploads      uploads: sessions from opening to end, the files that grow chunk by chunk
"""
