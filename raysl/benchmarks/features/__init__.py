"""Features of images: computed by frozen networks on the cluster, stored on disk in parts, read back in order."""
