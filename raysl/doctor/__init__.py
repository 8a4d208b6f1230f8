"""Looking at a cluster before a run: what each node is, and how fast nodes, images and the storage are."""
