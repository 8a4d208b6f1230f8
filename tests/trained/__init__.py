"""The trained backbones that come with raysl: packing them, their model cards, and what holds for each of them."""
