"""Any size: choose the tensor types of a model's organs so that its file has a size and stays close to the source.

search       make the file of a wanted size, and measure it beside the plain mix
sensitivity  what a coarse type of a group of organs does, measured by the runtime, stored
groups       groups of organs, and the types in which they may be written
shards       a model and its variants on the disk, as the runtime reads them
rounding     how much a type moves the weights
additive     what each organ adds to the divergence in each type, from all of that
choice       the types with the smallest sum for a size
layouts      files of a model: their types, sizes, memory and recipes
limits       the size of a file, or the memory by the runtime's count
tags         the names of sizes for clients
"""
