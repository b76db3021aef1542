"""Any size: choose the tensor types of a model's organs so that its file has a size and stays close to the source.

search      make the file of a wanted size, and measure it beside the plain mix
"""
