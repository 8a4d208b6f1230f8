"""Retrieval of the same object, building or copied image: datasets, protocols and descriptors."""
