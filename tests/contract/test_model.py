import pytest
import torch
import toys

from manyheads.contract import Part


def test_a_model_answers_by_the_names_of_its_parts():
    stage = toys.setting()
    model = stage.client(0, 0).model(stage.network.initial)
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert model.head(model.backbone(x)).shape == (2, 4)
    with pytest.raises(AttributeError, match=r"the model has no part 'neck'; it has backbone, head"):
        _ = model.neck
    assert set(model.params) == set(stage.network.initial)


def test_at_gives_the_same_modules_other_weights():
    stage = toys.setting()
    ctx = stage.client(0, 0)
    model = ctx.model(ctx.initial)
    doubled = model.at(ctx.initial * 2.0)
    z = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(doubled.head(z), 2 * model.head(z))
    head_alone = model.at(ctx.take(ctx.initial, Part.HEAD))
    assert torch.equal(head_alone.head(z), model.head(z))
    with pytest.raises(AttributeError, match="no part 'backbone'"):
        head_alone.backbone(z)


def test_a_piece_of_a_part_is_refused():
    stage = toys.setting()
    tree = stage.client(0, 0).take(stage.network.initial, Part.HEAD)
    with pytest.raises(KeyError, match=r"only a piece of .*'head': it lacks head\.weight"):
        stage.network.model(type(tree)({"head.bias": tree["head.bias"]}))
