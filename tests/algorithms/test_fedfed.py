"""FedFed's three stages on the tiny federation, with a small generator."""

import math
from dataclasses import replace

import pytest
import torch
import toys

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedfed import Distilling, FedFed, Sharing, balanced, bounded
from manyheads.contract import Batch, Part, Upload
from manyheads.errors import InputError
from manyheads.models.vae import VAE

SMALL = FedFed(distill_rounds=2, channels=4, latent=6)


@pytest.fixture(scope="module")
def heard():
    """Uploads by stage: distillation, sharing, main; and the result."""
    with pytest.MonkeyPatch.context() as patch:
        uploads = toys.listen(patch)
        result = toys.run(SMALL)
    messages = {key: Upload.from_bytes(data) for key, data in uploads.items()}
    rounds = sorted({round for round, _ in messages})
    assert rounds == [-3, -2, -1, 0, 1, 2]
    return messages, result


def test_everybody_shares_all_of_its_images_once(heard):
    messages, result = heard
    pool = [messages[-1, client] for client in range(6)]
    assert [len(upload.labels) for upload in pool] == list(toys.SIZES)
    assert {tuple(upload) for upload in pool} == {("labels", "model", "strong", "weak", "weight")}
    assert not any(upload.model for upload in pool)
    for name in ("weak", "strong", "labels"):
        assert torch.equal(result.server.get(name), torch.cat([upload.get(name) for upload in pool]))
    for (round, _), upload in messages.items():
        names = {name.partition(".")[0] for name in upload.model}
        assert (
            names
            == {-3: {"backbone", "head", "generator"}, -1: set(), 0: {"backbone", "head"}}[
                -3 if round < -1 else min(round, 0)
            ]
        )
        assert round == -1 or set(upload) == {"model", "weight"}


def test_every_pixel_of_every_image_has_noise_of_its_own(heard):
    messages, _ = heard
    shared = messages[-1, 0]
    scale = torch.tensor(toys.dataset().std)[:, None, None]
    # the same image under both noises: their difference has no image in it
    difference = (shared.weak - shared.strong) * scale
    expected = math.hypot(SMALL.weak_noise, SMALL.strong_noise)
    assert float(difference.std()) == pytest.approx(expected, rel=0.05)
    per_pixel = difference.std(dim=0)
    assert float(per_pixel.min()) > 0.5 * expected  # one noise image for all would make this 0


def test_a_pool_is_sent_to_a_client_once(heard):
    _, result = heard
    main = [row for row in result.rows if row["round"] >= 0]
    first = main[0]["bytes"]["down"]["1"]
    again = main[1]["bytes"]["down"]["1"]
    images = sum(toys.SIZES) * 64 * 4 * 2
    assert first > images > again


def test_the_last_stage_starts_from_the_initial_weights(heard):
    _, result = heard
    stage = toys.setting(SMALL)
    assert SMALL.init_server(stage.server(0), result.server).model == toys.setting(FedAvg()).network.initial


def test_the_loss_of_the_first_stage_by_hand():
    stage = toys.setting(Distilling(SMALL))
    model = stage.client(0, 0).model(stage.network.initial)
    x, y = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 3])
    noise = {name: torch.randn(3, 1, 8, 8) for name in ("weak", "strong")}
    extra = {"scale": torch.tensor(0.5), "shift": torch.tensor(0.25), "latent": torch.randn(3, 6), **noise}
    terms = Distilling(SMALL).loss(model, Batch(x, y, torch.arange(3), extra))
    pixels = x * 0.5 + 0.25
    painted, mean, log_variance = model.generator(pixels, extra["latent"])
    rest = pixels - painted

    def ce(images):
        logits = model.head(model.backbone((images - 0.25) / 0.5))
        return float(-logits.log_softmax(dim=1)[torch.arange(3), y].mean())

    both = (ce(rest + noise["weak"]) + ce(rest + noise["strong"])) / 2
    kl = sum(
        (m * m + math.exp(v) - v - 1) / 2
        for m, v in zip(mean.flatten().tolist(), log_variance.flatten().tolist(), strict=True)
    )
    assert float(terms["rebuild"]) == pytest.approx(5 * float((rest**2).mean()), rel=1e-5)
    assert float(terms["rest"]) == pytest.approx(2 * both, rel=1e-5)
    assert float(terms["image"]) == pytest.approx(0.4 * ce(pixels), rel=1e-5)
    assert float(terms["kl"]) == pytest.approx(0.005 * kl / 3 / (3 * 6), rel=1e-4)


def test_own_and_shared_images_count_alike():
    stage = toys.setting(SMALL)
    model = stage.client(0, 0).model(stage.network.initial)
    images = [torch.randn(2, 1, 8, 8) for _ in range(3)]
    labels = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1, 1])]
    extra = {"weak": images[1], "strong": images[2], "weak_y": labels[1], "strong_y": labels[2]}
    terms = SMALL.loss(model, Batch(images[0], labels[0], torch.arange(2), extra))
    logits = model.head(model.backbone(torch.cat(images)))
    expected = -logits.log_softmax(dim=1)[torch.arange(6), torch.cat(labels)].mean()
    assert float(sum(terms.values())) == pytest.approx(float(expected), rel=1e-5)


def test_every_class_of_the_pool_is_drawn_alike():
    labels = torch.tensor([0] * 50 + [2] * 3 + [3] * 9)  # nobody holds class 1
    rows = balanced(labels, 20, torch.Generator().manual_seed(0))
    assert sorted(torch.bincount(labels[rows]).tolist()) == [0, 6, 7, 7]
    assert set(rows[labels[rows] == 2].tolist()) == {50, 51, 52}  # repeated only after all were taken
    many = rows[labels[rows] == 0].tolist()
    assert len(set(many)) == len(many)
    assert not torch.equal(labels[rows], labels[rows].sort().values)


def test_the_pool_is_drawn_anew_every_round():
    stage = toys.setting(SMALL)
    labels = torch.arange(40) % 4
    received = SMALL.broadcast(
        SMALL.init_server(stage.server(0)).replace(weak=torch.zeros(40, 1), strong=torch.zeros(40, 1), labels=labels),
        0,
        stage.server(0),
    ).replace(weak=torch.arange(40), strong=torch.arange(40))
    drawn = [SMALL.prepare(None, received, None, toys.data([0] * 9), stage.client(r, 0)).columns for r in (0, 0, 1)]
    assert torch.equal(drawn[0]["weak"], drawn[1]["weak"])
    assert not torch.equal(drawn[0]["weak"], drawn[2]["weak"])
    assert not torch.equal(drawn[0]["weak"], drawn[0]["strong"])
    assert torch.equal(drawn[0]["weak_y"], labels[drawn[0]["weak"]])


def test_what_is_left_is_bounded():
    images = torch.tensor([3.0, 4.0, 0.3, 0.4]).reshape(2, 1, 1, 2)
    assert bounded(images, None) is images
    torch.testing.assert_close(bounded(images, 1.0).flatten().tolist(), [0.6, 0.8, 0.3, 0.4])
    assert bounded(torch.zeros(1, 1, 2, 2), 1.0).abs().max() == 0
    method = replace(SMALL, bound=0.5, weak_noise=0.0, strong_noise=0.0)
    stage = toys.setting(Sharing(method))
    data = stage.parties.train(0)
    ctx = stage.client(-1, 0)
    received = Sharing(method).broadcast(Sharing(method).init_server(stage.server(-1)), 0, stage.server(-1))
    upload = Sharing(method).local_update(received, Sharing(method).init_private(received, ctx), data, ctx).upload
    scale, shift = torch.tensor(data.std)[:, None, None], torch.tensor(data.mean)[:, None, None]
    norms = (upload.weak * scale + shift).flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.5))
    assert torch.equal(upload.weak, upload.strong)


def test_mixing_keeps_the_proportion_of_images_and_labels():
    x = torch.eye(4).reshape(4, 1, 2, 2)
    batch = Batch(x, torch.arange(4), torch.arange(4), {})
    mixed = Distilling(SMALL).mixed(batch, torch.Generator().manual_seed(3))
    share = float(mixed.share[0])
    assert 0 < share < 1
    rows = torch.arange(4)
    expected = share * torch.eye(4)[rows] + (1 - share) * torch.eye(4)[mixed.other]
    torch.testing.assert_close(mixed.x.flatten(1), expected)
    assert sorted(mixed.other.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("image", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (2, 9, 11)])
def test_the_generator_takes_any_image(image):
    with torch.no_grad():
        painted, mean, log_variance = VAE(image, 4, 5)(torch.rand(2, *image), torch.zeros(2, 5))
    assert painted.shape == (2, *image)
    assert mean.shape == log_variance.shape == (2, 5)
    assert 0 <= float(painted.min()) <= float(painted.max()) <= 1


def test_the_generator_and_the_classifier_learn():
    stage = toys.setting(Distilling(SMALL), train__rounds=1)
    assert {name.partition(".")[0] for name in stage.network.initial} == {"backbone", "head", "generator"}
    initial, ctx = stage.network.initial, stage.client(-3, 0)
    trained = stage.algorithm.train(initial, None, None, stage.parties.train(0), ctx)
    for part in (Part.BACKBONE, Part.HEAD, Part.of("generator")):
        assert ctx.take(trained, part) != ctx.take(initial, part)
    assert set(ctx.trace[0]) == {"warm-up/ce"}
    assert set(ctx.trace[1]) == {f"distillation/{term}" for term in ("rebuild", "rest", "image", "kl")}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"channels": 3}, "algorithm.channels = 3: must be even and at least 2"),
        ({"distill_rounds": 0}, "algorithm.distill_rounds = 0: must be at least 1"),
        ({"weak_noise": -0.1}, "algorithm.weak_noise = -0.1: must be at least 0"),
        ({"bound": 0.0}, "algorithm.bound = 0.0: must be above 0"),
    ],
)
def test_wrong_values_are_refused(options, said):
    with pytest.raises(InputError) as error:
        FedFed(**options)
    assert str(error.value) == said
