"""Features of images: made by frozen networks on the cluster, kept on disk in parts, read back in order."""
