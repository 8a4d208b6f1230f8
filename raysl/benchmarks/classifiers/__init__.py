"""The parts of linear classifiers on frozen features: scaling, solvers, held-out images."""
