"""Checkpoints: files and their hashes, tensors, and the trained backbone.

A checkpoint is a folder:

* `train_state.pt`: method, optimizer, step, callbacks and the average of the weights where one is kept; tensors and
  primitives only (`weights_only=True`)
* `backbone.safetensors`: the exported backbone
* `run.yaml`: the run's settings
* `meta.json`: format, raysl version, method, step, epochs of the run, dataset, metrics, the weights that it began with
  where those are another run's, why it ended early if it did, and the other files
  (`raysl.checkpoint.checkpoint_folder`)
"""
