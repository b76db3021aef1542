"""Models on their way to a registry elsewhere: only what it lacks travels, and what was cut goes on.

cutting       files into the pieces that the registry would keep: tensors, metadata arrays, runs of the header
remembering   digests of files that were hashed before, submissions under way; in the user's cache
loading       what is missing as loads: packs of small pieces, larger ones by themselves
answers       what the registry answers, checked
room          whether what is to be sent has room in the contributor's quota
waiting       patience with a registry that is away for a while
sending       a load through an upload session, from where the registry is
lanes         several loads at once, in threads that end when one fails or somebody has seen enough
submitting    the manifest, and what becomes of it
service       one model from its files to its page
"""
