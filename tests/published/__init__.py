"""What is published of each recipe, held against what the recipe does.

Every configuration for ImageNet, `configs/imagenet/NAME.yaml`, has a file `tests/published/NAME.yaml`:

    sources:                        # a key, and where it leads: a section of the paper, a file of the official code
      paper: section 4.2, appendix B
      code: google-research/simclr, tf2/model.py, master
    images: 14197122                # optional: training images, where they are not those of ImageNet-1k
    build: [backbone.depth=4]       # optional: settings of the network that is measured, where the real one is too
                                    # large; they must leave every fact of the file as it is
    facts:                          # what the source has: name: [value, source]
      epochs: [100, paper]
      lr: [[0, 4.8, 4.6, 2.7, 0], code]
    departures:                     # what the recipe has in its place: name: [value, why]
      init.last_gamma: [1, why it is not the source's]

`raysl/` is measured, not the settings: the plan, the views, the optimizer's groups, the layers and their initial
weights, a training step. `python -m tests.published simclr` prints all facts of a recipe with our values, which is the
list of names to choose from (`measure.py` says what each is); `python -m tests.published` writes the departures of all
files into docs/recipes.md. A fact that is neither equal nor a departure fails, and so do a departure that is none and
a name that no recipe of this kind has. Each file states at least the facts of `REQUIRED`; a section of the paper or a
line of the code for every further one that it tells makes the file better.

Write down what the source has, not what we have: `lr` from its formula, `init.*` from its code, in the words of
`initial.py`. A value of one number may be given for a list of equal ones.
"""
