"""What linear classifiers of frozen features share: scaling, solvers, held-out images."""
