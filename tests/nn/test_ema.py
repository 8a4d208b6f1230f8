import pytest
import torch
from torch import Tensor, nn

from raysl.nn.ema import Teacher
from raysl.nn.heads import mlp


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(mlp([4, 6, 3], norm=True), nn.Linear(3, 2))


def trained(module: nn.Module) -> dict[str, Tensor]:
    """Move weights and running statistics; the state after it."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5).add_(0.25)
        module(torch.linspace(-1, 2, 20).view(5, 4).to(next(module.parameters()).dtype))
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", ["own", "copy", "ema"])
def test_each_tensor_moves_as_the_rule_says(rule: str, dtype: torch.dtype) -> None:
    student = network().to(dtype)
    teacher = Teacher(student, buffers=rule)
    before = {name: value.clone() for name, value in teacher.module.state_dict().items()}
    target = trained(student)
    teacher.update(student, 0.9)
    for name, now in teacher.module.state_dict().items():
        is_buffer, is_count = "running" in name or "num_batches" in name, "num_batches" in name
        mixed = 0.9 * before[name] + 0.1 * target[name]
        expected = mixed if not is_buffer else {"own": before[name], "copy": target[name], "ema": mixed}[rule]
        expected = target[name] if is_count and rule == "ema" else expected
        assert now.dtype == before[name].dtype
        close = 1e-6 if dtype == torch.float32 else 1e-14
        torch.testing.assert_close(now, expected, rtol=close, atol=close)


def test_momentum_nought_copies_bit_for_bit_and_one_keeps() -> None:
    student = network()
    teacher = Teacher(student, buffers="ema")
    start = {name: value.clone() for name, value in teacher.module.state_dict().items() if "num_" not in name}
    target = trained(student)
    teacher.update(student, 1.0)
    assert all(torch.equal(teacher.module.state_dict()[name], value) for name, value in start.items())
    teacher.update(student, 0.0)
    assert all(torch.equal(value, target[name]) for name, value in teacher.module.state_dict().items())


def test_a_teacher_gives_and_takes_no_gradients() -> None:
    student = network()
    student(torch.randn(5, 4)).sum().backward()
    teacher = Teacher(student)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher(torch.randn(5, 4, requires_grad=True)).requires_grad
    assert all(parameter.requires_grad for parameter in student.parameters())


def test_frozen_parts_of_a_student_are_followed_and_its_further_parts_are_not_asked_for() -> None:
    student = network()
    teacher = Teacher(nn.Sequential(student[0]))
    student[0].requires_grad_(False)
    target = trained(student)
    teacher.update(student, 0.5)
    teacher.update(student, 0.0)
    assert torch.equal(teacher.module[0][0].weight, target["0.0.weight"])


def test_parameters_shared_under_two_names_move_once() -> None:
    student = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    student[1].weight = student[0].weight
    teacher = Teacher(student)
    start = teacher.module[0].weight.clone()
    with torch.no_grad():
        student[0].weight.add_(1)
    teacher.update(student, 0.5)
    assert teacher.module[1].weight is teacher.module[0].weight
    torch.testing.assert_close(teacher.module[0].weight, start + 0.5)


def test_a_student_of_other_names_or_shapes_is_refused() -> None:
    teacher = Teacher(nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match=r"0\.weight as \[2, 3\], and the student has none, but module\.0\.weight"):
        teacher.update(nn.ModuleDict({"module": nn.Sequential(nn.Linear(3, 2))}), 0.9)
    with pytest.raises(ValueError, match=r"0\.weight as \[2, 3\], and the student has it as \[1, 3\]"):
        teacher.update(nn.Sequential(nn.Linear(3, 1)), 0.9)


def test_bad_momentum_and_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum of a teacher is 1\.1"):
        Teacher(network()).update(network(), 1.1)
    with pytest.raises(ValueError, match="'own', 'copy' or 'ema'"):
        Teacher(network(), buffers="mean")
