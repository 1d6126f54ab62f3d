"""Tables are standardised unless told otherwise, and a run says so."""

import numpy as np
import pytest
from cli_helpers import lines

from hospitals import patients, write_patients

MODEL = ("--set", "model.hidden=[4]", "--set", "data.label=died", "--set", "data.client=hospital")


@pytest.mark.parametrize(("settings", "said"), [((), True), (("--set", "data.normalise=none"), False)])
def test_a_run_on_a_table_says_what_was_done_to_columns(strata, place, settings, said):
    write_patients(place / "h.csv", patients(hospitals=3, smallest=30, largest=40))
    result = strata("run", "--data", "h.csv", *MODEL, "--rounds", 1, "--metric", "auroc", *settings, "--out", "done")
    assert result.code == 0
    assert ("columns are standardised" in result.err) is said
    assert np.isfinite(lines(place / "done" / "rounds.jsonl")[0]["train.loss"])
