import pytest
import torch
import toys

from manyheads.contract import Batch
from manyheads.contract.data import Pixels


def batch(y, mask=None, **extra):
    n = len(y)
    return Batch(torch.zeros(n, 1, 1, 1), torch.tensor(y), torch.arange(n), extra, mask)


def test_a_mean_runs_over_real_samples():
    values = torch.tensor([1.0, 2.0, 9.0])
    assert batch([0, 0, 0]).mean(values).item() == 4.0
    assert batch([0, 0, 0], mask=torch.tensor([1.0, 1.0, 0.0])).mean(values).item() == 1.5


def test_columns_and_constants_are_read_by_name():
    b = batch([0, 1], anchors=torch.eye(2))
    assert b.anchors.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(AttributeError, match=r"the batch has no 'teacher'; it has x, y, anchors"):
        _ = b.teacher


def test_replace_leaves_the_batch_alone():
    b = batch([0, 1], soft=torch.zeros(2))
    other = b.replace(x=b.x + 1, soft=torch.ones(2))
    assert (b.x.sum().item(), b.soft.sum().item()) == (0.0, 0.0)
    assert (other.x.sum().item(), other.soft.sum().item()) == (2.0, 2.0)
    assert other.y is b.y


def test_views_leave_the_data_alone():
    data = toys.data([1, 2, 3])
    more = data.with_(soft=torch.ones(3)).given(scale=2.0).map(lambda b, generator: b)
    assert (dict(data.columns), dict(data.constants), data.maps) == ({}, {}, ())
    assert (set(more.columns), dict(more.constants), len(more.maps)) == ({"soft"}, {"scale": 2.0}, 1)
    assert more.x(torch.tensor([2, 0])).flatten().tolist() == [3.0, 1.0]


def test_some_samples_keep_their_columns():
    data = toys.data([1, 2, 3, 4], [3, 2, 1, 0]).with_(soft=torch.arange(4.0), twice=lambda x: x * 2).given(scale=2.0)
    some = data.map(lambda b, generator: b).take(torch.tensor([3, 1]))
    assert (len(some), some.y.tolist(), some.columns["soft"].tolist()) == (2, [0, 2], [3.0, 1.0])
    assert some.x(torch.tensor([1, 0])).flatten().tolist() == [2.0, 4.0]
    assert some.columns["twice"](torch.ones(1)).item() == 2.0
    assert (dict(some.constants), len(some.maps), len(data)) == ({"scale": 2.0}, 1, 4)
    assert some.take(torch.tensor([1])).y.tolist() == [2]


def test_a_column_has_a_value_for_each_sample():
    with pytest.raises(ValueError, match=r"column 'soft' has 2 values for 3 samples"):
        toys.data([1, 2, 3]).with_(soft=torch.ones(2))


@pytest.mark.parametrize("name", ["x", "y", "rows", "mask", "mean", "soft", "scale"])
def test_names_are_taken_once(name):
    data = toys.data([1, 2]).with_(soft=torch.ones(2)).given(scale=2.0)
    for add in (lambda: data.with_(**{name: torch.ones(2)}), lambda: data.given(**{name: 1.0})):
        with pytest.raises(ValueError, match=f"has '{name}' already"):
            add()


def test_pixels_are_normalised_per_channel():
    images = torch.zeros(2, 2, 3, 2, dtype=torch.uint8)
    images[1] = torch.arange(12).reshape(2, 3, 2)
    images[1, 0, 0] = torch.tensor([255, 51])
    x = Pixels(images, mean=(0.5, 0.0), std=(0.25, 0.1))(torch.tensor([1, 0]))
    assert x.shape == (2, 2, 2, 3)
    assert x.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(x[:, :, 0, 0], torch.tensor([[2.0, 2.0], [-2.0, 0.0]]))
    mean, std = torch.tensor([0.5, 0.0]), torch.tensor([0.25, 0.1])
    torch.testing.assert_close(x[0].permute(1, 2, 0), (images[1] / 255 - mean) / std)


def test_indices_follow_images_to_their_device(monkeypatch):
    seen = []
    real = torch.Tensor.index_select
    monkeypatch.setattr(
        torch.Tensor,
        "index_select",
        lambda images, dim, rows: seen.append((images.device.type, rows.device.type)) or real(images, dim, rows),
    )
    images = torch.zeros(3, 2, 2, 1, dtype=torch.uint8, device="meta")
    assert Pixels(images, (0.0,), (1.0,))(torch.tensor([0, 2])).shape == (2, 1, 2, 2)
    assert seen == [("meta", "meta")]  # a GPU refuses to be given others
