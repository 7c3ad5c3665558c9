import pytest
import torch
from torch import nn

from manyheads.errors import InputError
from manyheads.models import Dropout, draw_mask, replace_dropout, set_generator


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distinct(x: torch.Tensor) -> list[float]:
    return sorted(set(x.flatten().tolist()))


def dropped(layer: Dropout, x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    set_generator(layer, seeded(seed))
    result: torch.Tensor = layer(x)
    return result


@pytest.mark.parametrize("p", [0.25, 0.5, 0.1, 0.9])
def test_share_of_zeros_and_mean_are_right(p: float) -> None:
    mask = draw_mask((1000, 1000), p, seeded())
    assert (mask == 0).double().mean().item() == pytest.approx(p, abs=5 * (p * (1 - p) / 1e6) ** 0.5)
    assert mask.double().mean().item() == pytest.approx(1, abs=5 * (p / (1 - p) / 1e6) ** 0.5)
    assert distinct(mask) == pytest.approx([0, 1 / (1 - p)], rel=1e-4)


def test_scale_belongs_to_the_rounded_probability() -> None:
    drop = round(0.1 * 65536)
    assert draw_mask((64,), 0.1, seeded()).max().item() == pytest.approx(65536 / (65536 - drop), rel=1e-7)


@pytest.mark.parametrize("p", [0.0, 1e-7])
def test_probability_that_rounds_to_zero_keeps_everything(p: float) -> None:
    assert torch.equal(draw_mask((3, 5), p, seeded()), torch.ones(3, 5))


def test_probability_next_to_one_stays_finite() -> None:
    mask = draw_mask((1 << 20,), 0.9999999, seeded())
    assert mask.isfinite().all()
    assert distinct(mask) == [0, 65536]


def test_masks_are_decided_element_by_element() -> None:
    mask = draw_mask((100_000,), 0.5, seeded()).gt(0).double() - 0.5
    for lag in range(1, 9):  # eight neighbours: four elements share one 64-bit draw
        assert abs((mask[lag:] * mask[:-lag]).mean().item()) < 0.25 * 5 / 100_000**0.5


@pytest.mark.parametrize("rows", [1, 3, 60])
def test_more_rows_begin_with_the_same_rows(rows: int) -> None:
    assert torch.equal(draw_mask((rows, 7), 0.25, seeded()), draw_mask((64, 7), 0.25, seeded())[:rows])


def test_same_generator_state_gives_the_same_bits_and_another_seed_does_not() -> None:
    layer, x = Dropout(0.25), torch.randn(8, 33, generator=seeded(1))
    assert torch.equal(dropped(layer, x, 5), dropped(layer, x, 5))
    assert not torch.equal(dropped(layer, x, 5), dropped(layer, x, 6))


def test_successive_calls_draw_different_masks() -> None:
    layer = Dropout(0.5)
    set_generator(layer, seeded())
    x = torch.ones(4, 64)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("channels", [False, True])
def test_result_does_not_depend_on_the_memory_format(channels: bool) -> None:
    layer, x = Dropout(0.25, channels=channels), torch.randn(4, 6, 5, 3, generator=seeded(1))
    plain = dropped(layer, x.contiguous())
    assert torch.equal(plain, dropped(layer, x.contiguous(memory_format=torch.channels_last)))
    assert torch.equal(plain, dropped(layer, x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)))


def test_four_dimensional_masks_are_drawn_channels_last() -> None:
    expected = draw_mask((2, 4, 5, 3), 0.25, seeded()).permute(0, 3, 1, 2)
    assert torch.equal(dropped(Dropout(0.25), torch.ones(2, 3, 4, 5)), expected)


def test_channels_are_dropped_whole() -> None:
    result = dropped(Dropout(0.5, channels=True), torch.ones(8, 16, 3, 3))
    assert torch.equal(result, result[:, :, :1, :1].expand_as(result))
    assert distinct(result) == [0, 2]


def test_gradient_passes_through_the_same_mask() -> None:
    x = torch.randn(5, 11, generator=seeded(1)).requires_grad_()
    result = dropped(Dropout(0.25), x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, draw_mask((5, 11), 0.25, seeded()))


def test_bfloat16_stays_bfloat16() -> None:
    result = dropped(Dropout(0.5), torch.ones(4, 9, dtype=torch.bfloat16))
    assert result.dtype == torch.bfloat16
    assert distinct(result) == [0, 2]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.25, 0.5, 0.9999999])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mask_in_half_the_bits_is_the_same_one_rounded(p: float, dtype: torch.dtype) -> None:
    assert torch.equal(draw_mask((64, 9), p, seeded(), dtype), draw_mask((64, 9), p, seeded()).to(dtype))


@pytest.mark.parametrize(("p", "training"), [(0.25, False), (0.0, True)])
def test_identity_draws_nothing(p: float, training: bool) -> None:
    layer, x, generator = Dropout(p).train(training), torch.ones(2, 2), seeded()
    set_generator(layer, generator)
    assert layer(x) is x
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_global_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    dropped(Dropout(0.5), torch.ones(4, 4))
    assert torch.equal(before, torch.get_rng_state())


def test_train_mode_without_a_generator_is_refused() -> None:
    with pytest.raises(RuntimeError, match="set_generator"):
        Dropout(0.5)(torch.ones(2, 2))


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_probability_out_of_range(p: float) -> None:
    with pytest.raises(InputError, match=r"^dropout = .*less than 1$"):
        Dropout(p)


@pytest.mark.parametrize(
    ("layer", "channels"),
    [(nn.Dropout(0.3), False), (nn.Dropout1d(0.3), True), (nn.Dropout2d(0.3), True), (nn.Dropout3d(0.3), True)],
)
def test_torch_layers_are_replaced_at_any_depth(layer: nn.Dropout, channels: bool) -> None:
    network = nn.Sequential(nn.Sequential(nn.Linear(2, 2), layer), nn.ReLU(), layer)
    assert replace_dropout(network) is network
    for made in (network[2], network.get_submodule("0.1")):
        assert isinstance(made, Dropout)
        assert (made.p, made.channels, made.training) == (0.3, channels, True)
    assert isinstance(replace_dropout(layer), Dropout)
