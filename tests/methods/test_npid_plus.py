from raysl.config.load import load_config
from raysl.methods.npid import NPID
from raysl.methods.npid_plus import NPIDPlus


def test_npid_plus_is_npid_with_more_negatives() -> None:
    ours, npid = NPIDPlus.Config(), NPID.Config()
    others = ("temperature", "output_dim", "momentum", "projector_norm", "loss", "views")
    assert all(getattr(ours, name) == getattr(npid, name) for name in others)
    assert (ours.num_negatives, npid.num_negatives) == (32000, 4096)
    assert NPIDPlus.training_step is NPID.training_step


def test_the_published_schedule_is_a_cosine_from_a_large_rate() -> None:
    config = load_config("npid_plus")
    assert (config.train.epochs, config.train.batch_size) == (800, 1024)
    optim = config.optim
    assert (optim.schedule, optim.lr, optim.lr * optim.final_lr) == ("cosine", 0.12, 0.00012)
    assert (optim.lr_scaling, optim.weight_decay, optim.warmup.value) == ("none", 1e-4, 0)
