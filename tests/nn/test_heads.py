import torch

from raysl.nn.heads import Prototypes


def test_scores_of_unit_embeddings_are_cosines() -> None:
    prototypes, z = Prototypes(4, 6), torch.randn(3, 2, 4)
    scores = prototypes(torch.nn.functional.normalize(z, dim=-1))
    assert scores.shape == (3, 2, 6)
    expected = torch.nn.functional.cosine_similarity(z[:, :, None], prototypes.weight[None, None], dim=-1)
    torch.testing.assert_close(scores, expected)


def test_rows_leave_the_unit_sphere_in_an_update_and_come_back() -> None:
    prototypes = Prototypes(4, 6)
    weight = prototypes.weight
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(6))
    with torch.no_grad():
        weight.mul_(torch.arange(1.0, 7)[:, None])
    directions = weight.detach().clone()
    prototypes.normalise()
    assert prototypes.weight is weight
    torch.testing.assert_close(weight, directions / torch.arange(1.0, 7)[:, None])


def test_the_start_may_be_torchs() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Linear(4, 6, bias=False).weight
    torch.manual_seed(0)
    assert torch.equal(Prototypes(4, 6, is_unit_at_start=False).weight, theirs)
    assert dict(Prototypes(4, 6).named_parameters()).keys() == {"weight"}
