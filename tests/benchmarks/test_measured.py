"""What is kept of a benchmark's findings."""

import torch

from raysl.benchmarks.benchmark import Findings, Metric
from raysl.benchmarks.suite.measured import measured_of


def test_predictions_are_compared_with_the_labels_of_a_benchmark_that_gets_no_features() -> None:
    scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    findings = Findings([Metric("top1", 66.7)], scores, are_probabilities=True, labels=torch.tensor([0, 1, 1]))
    measured = measured_of(findings, findings.labels, ("cat", "dog"), 1.0)
    assert measured.figures["confusion"]["counts"] == [[1, 0], [1, 1]]
    assert sum(num for _, _, num in measured.figures["reliability"]["bins"]) == 3
    assert measured.predicted is not None
    assert measured.predicted.tolist() == [0, 1, 0]
