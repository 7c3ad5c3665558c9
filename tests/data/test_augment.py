"""RandAugment: what each operation does, what is drawn, and what is left alone."""

from collections import Counter
from itertools import combinations

import pytest
import torch
import toys
from kornia import enhance

from manyheads.contract import Batch, Data
from manyheads.data import augment
from manyheads.data.augment import RandAugment
from manyheads.errors import InputError

GRAY, COLOUR = 1, 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pixels(channels, n=24, side=8, seed=1):
    return torch.rand(n, channels, side, side, generator=generator(seed))


def batch(x):
    x = x.contiguous(memory_format=torch.channels_last)
    return Batch(x, torch.arange(len(x)) % 3, torch.arange(len(x)), {"a": 1})


def only(monkeypatch, *names):
    """RandAugment that has these operations and no others."""
    for group in ("WARPS", "PIXELS", "COLORS"):
        monkeypatch.setattr(augment, group, tuple(name for name in getattr(augment, group) if name in names))


def made(channels, **values):
    return RandAugment((0.0,) * channels, (1.0,) * channels, **values)


def changed(monkeypatch, name, x, magnitude=30, seed=0):
    """The images of ``x`` on which the only operation fell, before and after, and the direction that it took."""
    only(monkeypatch, name)
    after = made(x.shape[1], ops=1, magnitude=magnitude)(batch(x), generator(seed)).x
    rng = generator(seed)
    hit = torch.randint(2, (1, len(x)), generator=rng)[0] == 1
    sign = (torch.randint(2, (1, len(x)), generator=rng) * 2.0 - 1)[0]
    assert torch.equal(after[~hit], x[~hit])  # the identity, bit for bit
    assert hit.any()
    assert sign[hit].unique().tolist() == [-1, 1]
    return x[hit], after[hit], sign[hit]


@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_brightness_is_a_factor(channels, monkeypatch):
    before, after, sign = changed(monkeypatch, "brightness", pixels(channels), magnitude=10)
    expected = (before * (1 + 0.3 * sign)[:, None, None, None]).clamp(0, 1)  # 0.9 * 10 / 30
    torch.testing.assert_close(after, expected)


def test_solarize_inverts_what_is_bright(monkeypatch):
    before, after, _ = changed(monkeypatch, "solarize", pixels(GRAY), magnitude=9)
    torch.testing.assert_close(after, torch.where(before < 0.7, before, 1 - before))


def test_posterize_drops_bits(monkeypatch):
    _, after, _ = changed(monkeypatch, "posterize", pixels(GRAY, n=64), magnitude=30)  # 4 of 8 bits are left
    levels = (after * 255).round().int()
    assert (levels % 16 == 0).all()
    assert len(levels.unique()) == 16


def test_auto_contrast_spreads_each_image(monkeypatch):
    _, after, _ = changed(monkeypatch, "auto_contrast", pixels(GRAY) * 0.3 + 0.2)
    torch.testing.assert_close(after.amin(dim=(1, 2, 3)), torch.zeros(len(after)), atol=1e-4, rtol=0)
    torch.testing.assert_close(after.amax(dim=(1, 2, 3)), torch.ones(len(after)), atol=1e-4, rtol=0)


def test_contrast_pulls_to_the_mean_or_away(monkeypatch):
    before, after, sign = changed(monkeypatch, "contrast", pixels(GRAY) * 0.1 + 0.45, magnitude=20)
    ratio = after.std(dim=(1, 2, 3)) / before.std(dim=(1, 2, 3))
    torch.testing.assert_close(ratio, 1 + 0.6 * sign, rtol=1e-3, atol=0)


def test_color_leaves_the_gray_of_a_pixel(monkeypatch):
    before, after, sign = changed(monkeypatch, "color", pixels(COLOUR) * 0.1 + 0.45, magnitude=20)
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    gray = (before * weights).sum(dim=1, keepdim=True)
    torch.testing.assert_close(
        after, gray + (1 + 0.6 * sign)[:, None, None, None] * (before - gray), atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_auto_contrast_leaves_a_channel_of_one_value(channels, monkeypatch):
    flat = pixels(channels)
    flat[:, -1] = 0.5
    before, after, _ = changed(monkeypatch, "auto_contrast", flat)
    assert torch.equal(after[:, -1], before[:, -1])
    others = enhance.normalize_min_max(before[:, :-1]).clamp(0, 1) if channels == COLOUR else before[:, :-1]
    assert torch.equal(after[:, :-1], others)  # bit for bit


@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_sharpness_by_hand(channels, monkeypatch):
    image = torch.full((3, 3), 0.25)
    image[0, 0], image[1, 1] = 0.5, 0.75
    _, after, sign = changed(monkeypatch, "sharpness", image.expand(16, channels, 3, 3), magnitude=20)
    smooth = (5 * 0.75 + 0.5 + 7 * 0.25) / 13  # the middle counts five times, each pixel around it once
    for found, way in zip(after, sign.tolist(), strict=True):
        expected = image.clone()  # pixels at the border stay
        expected[1, 1] = smooth + (1 + 0.6 * way) * (0.75 - smooth)
        torch.testing.assert_close(found, expected.expand(channels, 3, 3))


@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_equalize_by_hand(channels, monkeypatch):
    # 384 pixels of level 10, 256 of 20, 256 of 30 and 128 of 40. All but the last, 896, are spread over 255 levels:
    # 3 pixels each. The pixels darker than a level, and half a step of 1, say where it goes.
    levels = {10: (0 + 1) // 3, 20: (384 + 1) // 3, 30: (640 + 1) // 3, 40: 255}  # (896 + 1) // 3 is too many
    assert list(levels.values()) == [0, 128, 213, 255]
    level = torch.tensor(list(levels)).repeat_interleave(torch.tensor([384, 256, 256, 128]))
    level = torch.stack([level.roll(100 * channel) for channel in range(channels)]).reshape(channels, 32, 32)
    _, after, _ = changed(monkeypatch, "equalize", ((level + 0.5) / 255).expand(16, channels, 32, 32))
    expected = sum((level == old) * new for old, new in levels.items()) / 255
    torch.testing.assert_close(after, expected.expand_as(after))


@pytest.mark.parametrize("name", ["equalize", "sharpness", "contrast", "auto_contrast", "posterize", "solarize"])
@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_pixel_operations_change_images_within_range(name, channels, monkeypatch):
    x = 0.1 + 0.8 * pixels(channels, side=24)  # of fewer pixels equalize would make nothing
    before, after, _ = changed(monkeypatch, name, x, magnitude=15)
    assert (before - after).abs().amax(dim=(1, 2, 3)).min() > 0.01
    assert after.min() >= 0
    assert after.max() <= 1


def dot(side=9):
    """Black but for one white pixel in the middle row, two to the right of the middle."""
    x = torch.zeros(16, 1, side, side)
    x[:, 0, side // 2, side // 2 + 2] = 1.0
    return x


def centre_of_mass(x):
    """Row and column, from the middle."""
    side = x.shape[2]
    place = torch.arange(side) - (side - 1) / 2
    mass = x.sum(dim=(1, 2, 3))
    return (x.sum(dim=3)[:, 0] * place).sum(dim=1) / mass, (x.sum(dim=2)[:, 0] * place).sum(dim=1) / mass


@pytest.mark.parametrize(
    ("name", "row", "column"),
    [
        # the dot stands at row 0, column 2; a grid that samples further right moves the image left
        ("rotate", lambda sign: -2 * sign * 0.5, lambda sign: 2 * 3**0.5 / 2 + 0 * sign),
        ("shear_x", lambda sign: 0 * sign, lambda sign: 2 + 0 * sign),
        ("shear_y", lambda sign: -2 * 0.3 * sign, lambda sign: 2 + 0 * sign),
        ("translate_x", lambda sign: 0 * sign, lambda sign: 2 - 9 * 0.15 * sign),
        ("translate_y", lambda sign: -9 * 0.15 * sign, lambda sign: 2 + 0 * sign),
    ],
)
def test_warps_move_a_dot_by_hand(name, row, column, monkeypatch):
    magnitude = 10 if name.startswith("translate") else 30  # 15 % of the image, so that the dot stays in it
    _, after, sign = changed(monkeypatch, name, dot(), magnitude=magnitude)
    found_row, found_column = centre_of_mass(after)
    torch.testing.assert_close(found_row, row(sign), atol=0.1, rtol=0)
    torch.testing.assert_close(found_column, column(sign), atol=0.1, rtol=0)


@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_normalised_images_are_augmented_as_pixels(channels):
    x = pixels(channels)
    plain = made(channels)(batch(x), generator()).x
    mean, std = (0.3, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels]
    m, s = (torch.tensor(values)[:, None, None] for values in (mean, std))
    other = RandAugment(mean, std)(batch((x - m) / s), generator()).x
    torch.testing.assert_close(other * s + m, plain, atol=1e-2, rtol=0)  # posterize may round the other way
    assert (plain - x).abs().mean() > 0.02


def test_labels_and_columns_stay(monkeypatch):
    before = batch(pixels(COLOUR))
    kept = before.x.clone()
    after = made(COLOUR)(before, generator())
    assert torch.equal(before.x, kept)
    assert torch.equal(after.y, before.y)
    assert torch.equal(after.rows, before.rows)
    assert after.a == 1
    assert after.x.is_contiguous(memory_format=torch.channels_last)


def test_the_stream_decides_everything():
    x = pixels(COLOUR)
    state = torch.get_rng_state()
    first, again, other = (made(COLOUR)(batch(x), generator(seed)).x for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_an_image_is_augmented_alike_in_any_company(channels):
    # operations draw for each image: what falls on one does not depend on the others' pixels
    x, others = pixels(channels), pixels(channels, seed=2)
    alone = made(channels)(batch(x), generator(3)).x
    for place in range(len(x)):
        mixed = others.clone()
        mixed[place] = x[place]
        found = made(channels)(batch(mixed), generator(3)).x[place]
        torch.testing.assert_close(found, alone[place], atol=1e-5, rtol=0)


def outcomes(image, names):
    """What each operation makes of an image, in each direction: names, and images of which no two are alike."""
    said, made_of = ["identity"], [image]
    for name in names:
        with pytest.MonkeyPatch.context() as patch:
            _, after, sign = changed(patch, name, image.expand(64, *image.shape), magnitude=15)
        found = [after[sign == way][0] for way in (-1, 1)]
        found = found[:1] if torch.equal(*found) else found
        said += [name] * len(found)
        made_of += found
    flat = torch.stack(made_of).flatten(1)
    assert (torch.cdist(flat, flat, p=float("inf")) + torch.eye(len(flat))).min() > 0.01
    return said, flat


@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_every_operation_falls_equally_often(channels):
    names = [*augment.WARPS, *augment.PIXELS, *(augment.COLORS if channels == COLOUR else ())]
    assert len(names) == (13 if channels == COLOUR else 12)  # with the identity, as many as the paper's table has
    image = 0.2 + 0.6 * pixels(channels, n=1, side=24)[0]
    said, expected = outcomes(image, names)
    after = made(channels, ops=1, magnitude=15)(batch(image.expand(3000, *image.shape)), generator()).x
    distance, which = torch.cdist(after.flatten(1), expected, p=float("inf")).min(dim=1)
    assert distance.max() < 1e-4
    seen = Counter(said[place] for place in which.tolist())
    assert set(seen) == {"identity", *names}
    assert max(seen.values()) < 1.5 * min(seen.values())


def test_every_step_epoch_client_and_round_draws_anew():
    # All images are the same one, so that batches differ by what was drawn for them and by nothing else.
    stage = toys.setting()
    data = toys.data(pixels(GRAY, n=1).expand(24, 1, 8, 8).clone())

    def shown(round, client):
        """The images of two epochs of two steps."""
        seen = []

        def look(m, b):
            seen.append(b.x.clone())
            return stage.algorithm.loss(m, b)

        stage.client(round, client).fit(stage.network.initial, look, data.map(RandAugment.of(data)), epochs=2, batch=12)
        return seen

    views = [view for turn in ((0, 0), (0, 1), (1, 0)) for view in shown(*turn)]
    assert len(views) == 12
    assert not any(torch.equal(a, b) for a, b in combinations(views, 2))
    assert all(torch.equal(a, b) for a, b in zip(shown(0, 0), views[:4], strict=True))


@pytest.mark.parametrize("channels", [2, 4])
def test_other_channels_are_refused(channels):
    values = torch.zeros(3, channels, 4, 4)
    source = toys.Values(values, (0.0,) * channels, (1.0,) * channels)
    data = Data(source, torch.arange(3), torch.zeros(3, dtype=torch.int64))
    for refused in (lambda: RandAugment.of(data), lambda: RandAugment.check((channels, 4, 4))):
        with pytest.raises(InputError, match=f"images of 1 or 3 channels, not {channels}"):
            refused()


def test_gray_and_colour_pass_the_check():
    RandAugment.check((GRAY, 3, 3))
    RandAugment.check((COLOUR, 3, 5))


@pytest.mark.parametrize(("height", "width"), [(2, 5), (5, 2), (1, 1)])
@pytest.mark.parametrize("channels", [GRAY, COLOUR])
def test_the_smallest_images(channels, height, width):
    """One pixel less a side is refused, and the next size works under every operation."""
    with pytest.raises(InputError, match=f"images of at least 3x3 pixels, not {height}x{width}"):
        RandAugment.check((channels, height, width))
    x = torch.rand(64, channels, 3, 3, generator=torch.Generator().manual_seed(0))
    source = toys.Values(x, (0.0,) * channels, (1.0,) * channels)
    data = Data(source, torch.arange(64), torch.zeros(64, dtype=torch.int64))
    batch = Batch(x, data.y, torch.arange(64), {})
    seen = RandAugment.of(data, ops=4)(batch, torch.Generator().manual_seed(0)).x
    assert seen.shape == x.shape
    assert torch.isfinite(seen).all()


def test_without_kornia_it_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(augment.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"needs kornia: pip install 'manyheads\[augment\]'"):
        RandAugment.of(toys.data([1.0]))
    with pytest.raises(InputError, match="needs kornia"):
        RandAugment.check((GRAY, 8, 8))
