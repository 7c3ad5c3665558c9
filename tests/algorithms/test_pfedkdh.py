"""pFedKDH's two switches for its teacher, and the rows of its Fig. 3."""

import pytest
from hand import AUXILIARY, PHI, THETA, run, server, trained

from manyheads.algorithms import registry
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.errors import InputError


@pytest.mark.parametrize("calibration", [0, 1, 3])
def test_without_recalibration_the_teacher_stays_as_it_was_calibrated(calibration):
    result = run(PFedKDH(calibration_epochs=calibration, recalibration_epochs=0), rounds=2)
    theta, teacher = server(result)
    assert theta != pytest.approx(THETA, rel=1e-3)  # the backbone has moved on
    _, expected = trained(THETA, PHI, *AUXILIARY, epochs=calibration, body=False)
    assert teacher == pytest.approx(expected, rel=1e-6)
    assert (tuple(expected) == PHI) == (calibration == 0)


def test_recalibration_goes_on_from_the_calibrated_teacher():
    (theta, teacher), (_, without) = (
        server(run(PFedKDH(calibration_epochs=2, recalibration_epochs=epochs))) for epochs in (1, 0)
    )
    _, expected = trained(theta, without, *AUXILIARY, epochs=1, body=False)
    assert teacher == pytest.approx(expected, rel=1e-6)


def test_the_rows_of_fig_3_add_up_to_the_method_as_configured():
    method = PFedKDH(kd_weight=0.3, prox_weight=0.5, recalibration_epochs=2)
    rows = {label: PFedKDH(**{**vars(method), **values}) for label, values in method.ablations(2).items()}
    on = [(row.prox_weight, row.kd_weight, row.recalibration_epochs) for row in rows.values()]
    # In the first two the teacher has no pupil: what it learns does not matter.
    assert on == [(0.0, 0.0, 2), (0.5, 0.0, 2), (0.5, 0.3, 0), (0.5, 0.3, 2)]
    assert list(rows.values())[-1] == method
    assert {row.calibration_epochs for row in rows.values()} == {3}


def test_calibration_epochs_out_of_range():
    with pytest.raises(InputError, match=r"^algorithm\.calibration_epochs = -1: must be at least 0"):
        registry.load("pfedkdh")(calibration_epochs=-1)


def test_without_distillation_its_ablation_has_no_teacher():
    method = PFedKDH(kd_weight=0.0)
    assert list(method.ablations(2).items()) == [
        ("persistent heads", {"kd_weight": 0.0, "prox_weight": 0.0}),
        ("+ proximal term = full", {}),
    ]
