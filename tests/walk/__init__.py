"""The pages walked as printed: block after block, each page by a reader who begins in a fresh folder."""
