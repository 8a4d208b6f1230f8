"""Files and folders on any storage: addresses, reads, a cache, the owner of a folder."""
