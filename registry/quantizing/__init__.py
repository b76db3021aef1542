"""Any size: the mix of tensor types with which a model of a wanted size differs least from its source."""
