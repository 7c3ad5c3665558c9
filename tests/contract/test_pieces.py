"""What the contract offers and no shipped method uses yet: each piece is run by a method of ``methods.py``."""

import methods
import pytest
import torch
import toys
from torch import nn

from manyheads.algorithms.fedavg import FedAvg
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.contract import Upload

MLP = {"model__name": "mlp", "model__hidden": [6]}


def uploads(heard):
    return {key: Upload.from_bytes(data) for key, data in heard.items()}


# a step rule of one's own


def test_two_batches_a_step_where_each_client_has_one():
    # the only batch is taken twice: without dropout its gradients are equal, and so is their mean
    one_batch = {**MLP, "train__batch": 64}
    wide, plain = toys.run(methods.WideAvg(), **one_batch), toys.run(FedAvg(), **one_batch)
    assert wide.server == plain.server
    assert toys.plain(wide.rows) == toys.plain(plain.rows)


def test_two_batches_a_step_make_half_as_many_steps():
    wide, plain = toys.run(methods.WideAvg(), **MLP), toys.run(FedAvg(), **MLP)
    assert wide.server != plain.server
    assert wide.rows[-1]["loss"]["ce"] < wide.rows[1]["loss"]["ce"]


# stages


def test_rounds_before_the_main_stage_are_negative():
    result = toys.run(methods.Staged(), **MLP)
    assert [(row["round"], row.get("stage")) for row in result.rows] == [
        (-1, 0),
        (-2, 0),
        (-1, 0),
        (-1, None),
        (0, None),
        (1, None),
        (2, None),
    ]
    assert [row["cohort"] for row in result.rows] == [[], [*range(6)], [*range(6)], [], *map(list, toys.COHORTS)]
    assert [bool(row["metrics"]) for row in result.rows] == [False] * 3 + [True] * 4
    assert result.server.began == 0
    assert {client: state.rounds for client, state in result.private.items()} == {0: 4, 1: 4, 2: 3, 3: 4, 4: 3, 5: 3}
    assert {client: state.last for client, state in result.private.items()} == {0: 2, 1: 1, 2: 0, 3: 2, 4: 1, 5: 2}


def test_a_fresh_stage_begins_without_private_state():
    result = toys.run(methods.Staged(fresh=True), cohorts=[[0, 1], [1, 3], [0, 3]], **MLP)
    assert {client: state.rounds for client, state in result.private.items()} == {0: 2, 1: 2, 3: 2}


def test_earlier_stages_draw_cohorts_of_their_own():
    alone = toys.run(methods.Warm(), cohorts=None, **MLP)
    staged = toys.run(methods.Staged(everyone=False), cohorts=None, **MLP)
    assert [row["cohort"] for row in staged.rows[-3:]] == [row["cohort"] for row in alone.rows[-3:]]
    assert all(len(row["cohort"]) == 3 for row in staged.rows[1:3])


@pytest.mark.parametrize("stop", [-2, -1, 0])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_is_resumed_across_the_border_of_a_stage(tmp_path, stop, fresh):
    method = methods.Staged(fresh=fresh)
    whole = toys.run(method, **MLP)
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(method, **MLP).run(tmp_path, toys.raising(stop))
    resumed = toys.resume(tmp_path, method)
    assert resumed.server == whole.server
    assert resumed.private == whole.private
    assert toys.plain(resumed.rows) == toys.plain(whole.rows)


# modules of a method's own


def test_a_module_more_is_trained_and_sent(overheard):
    result = toys.run(methods.Adapter(), **MLP)
    initial = toys.setting(methods.Adapter(), **MLP).network.initial
    for part in ("backbone", "head", "adapter"):
        assert result.server.model.part(part) != initial.part(part)
    for upload in uploads(overheard).values():
        assert {"adapter.weight", "adapter.bias"} < set(upload.model)
        assert upload.model.part("adapter") != initial.part("adapter")


class Nameless(methods.Adapter):
    """The module more has no weights."""

    def parts(self, base, sizes):
        return {**base, "adapter": nn.Tanh()}


def test_a_module_without_weights():
    result = toys.run(Nameless(), **MLP)
    plain = toys.run(FedAvg(), **MLP)
    assert set(result.server.model) == set(plain.server.model)
    assert result.server != plain.server


# several models of one client


def test_variants_have_rows_of_their_own():
    result = toys.run(methods.TwoAnswers(), **MLP)
    labels, rows = toys.dataset().test.labels, toys.partition().test
    zeros = [float((labels[mine] == 0).mean()) for mine in rows if len(mine)]
    for row in result.rows:
        last = row["round"] >= 0
        kinds = {(m["model"], m["moment"], m["data"], m["average"]) for m in row["metrics"]}
        assert len(row["metrics"]) == 2 * len(kinds) == 2 * (5 + 2 * last)
        for m in row["metrics"]:
            if m["variant"] == "zero" and m["average"] == "macro" and m["moment"] == "post_agg":
                assert m["accuracy"] == pytest.approx(sum(zeros) / 5)
    assert result.accuracy(variant="zero") == pytest.approx(sum(zeros) / 5)
    assert result.accuracy(variant="head") == toys.run(FedPer(), **MLP).accuracy()


# messages


def test_a_broadcast_for_each_client():
    result = toys.run(methods.Addressed(), **MLP)
    down = [row["bytes"]["down"] for row in result.rows]
    for cohort, sizes in zip(toys.COHORTS, down[1:], strict=True):
        assert list(sizes) == [str(client) for client in cohort]
    first = down[1]
    assert first["1"] == first["0"] + 4  # one number more
    assert first["2"] == first["0"] + 8
    # the letter stays the same, so that clients 1 and 0 are sent it once: what is left has one size for all
    assert down[2]["1"] == down[3]["0"] < first["0"]
    assert down[2]["4"] == first["0"] + 16
    for client, private in result.private.items():
        assert private.got.tolist() == [float(client)] * (client + 1)


def test_what_a_client_holds_is_not_sent_again(tmp_path):
    result = toys.run(methods.Constant(), **MLP)
    plain = toys.run(FedPer(), **MLP)
    extra = [
        {k: size - plain.rows[r]["bytes"]["down"][k] for k, size in result.rows[r]["bytes"]["down"].items()}
        for r in (1, 2, 3)
    ]
    assert all(4000 < extra[r][str(k)] < 4200 for r, k in ((0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (2, 5)))
    assert [extra[1]["1"], extra[2]["0"], extra[2]["3"]] == [0, 0, 0]
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(methods.Constant(), **MLP).run(tmp_path, toys.raising(0))
    assert toys.plain(toys.resume(tmp_path, methods.Constant()).rows) == toys.plain(result.rows)


def test_a_table_by_client_in_the_server_s_state(tmp_path, overheard):
    method = methods.Remembering()
    whole = toys.run(method, folder=tmp_path / "whole", **MLP)
    sent = uploads(overheard)
    assert {client: tree for client, tree in whole.server.last.items()} == {
        client: sent[round, client].model for client, round in {0: 2, 1: 1, 2: 0, 3: 2, 4: 1, 5: 2}.items()
    }
    with pytest.raises(KeyboardInterrupt):
        toys.experiment(method, **MLP).run(tmp_path / "cut", toys.raising(1))
    assert toys.resume(tmp_path / "cut", method).server == whole.server


def test_the_head_goes_up_while_the_backbone_comes_down(overheard):
    result = toys.run(methods.HeadUp(), **MLP)
    initial = toys.setting(**MLP).network.initial
    sent = uploads(overheard)
    assert all(set(upload.model) == {"head.weight", "head.bias"} for upload in sent.values())
    assert result.server.model.part("backbone") == initial.part("backbone")
    last = [sent[2, client] for client in (0, 3, 5)]
    mean = sum(u.model["head.bias"].double() * u.weight for u in last) / sum(u.weight for u in last)
    assert torch.equal(result.server.model["head.bias"], mean.float())
    assert all(set(state.model) == {"head.weight", "head.bias"} for state in result.private.values())


# training


def test_augmentation_is_drawn_at_every_step_and_repeats():
    one, again, plain = (toys.run(m, **MLP) for m in (methods.Noisy(), methods.Noisy(), FedAvg()))
    assert one.server == again.server
    assert one.server != plain.server
    assert toys.run(methods.Noisy(noise=0.0), **MLP).server == plain.server
    stage = toys.setting(**MLP)
    ctx, drawn = stage.client(0, 0), []

    def blur(b, generator):
        drawn.append(torch.rand(2, generator=generator))
        return b

    data = stage.parties.train(0)
    ctx.fit(ctx.initial, stage.algorithm.loss, data.map(blur).map(blur))
    assert len(drawn) == 2 * ctx.steps(data)
    assert len({tuple(pair.tolist()) for pair in drawn}) == len(drawn)


def test_a_step_size_for_each_part(overheard):
    initial = toys.setting(**MLP).network.initial
    toys.run(methods.PartSteps(head=1e-30), cohorts=[[0]] * 3, **MLP)
    for upload in uploads(overheard).values():
        torch.testing.assert_close(dict(upload.model.part("head")), dict(initial.part("head")), rtol=0, atol=1e-12)
        assert upload.model.part("backbone") != initial.part("backbone")
    assert toys.run(methods.PartSteps(), **MLP).server == toys.run(FedAvg(), train__lr=0.05, **MLP).server


def test_warm_up_of_a_whole_run():
    result = toys.run(PFedKDH(warmup_epochs=1), cohorts=[[0]], train__rounds=1, **MLP)
    plain = toys.run(PFedKDH(), cohorts=[[0]], train__rounds=1, **MLP)
    assert result.server.model.part("backbone") != plain.server.model.part("backbone")
