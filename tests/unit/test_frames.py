"""`fit` with one table: columns of labels and clients, with categories, dates and missing values."""

import numpy as np
import pytest
import torch

import stratafl
from stratafl.algorithms import fedper
from stratafl.errors import DataError, StrataError
from stratafl.policies import LocalTraining

METHOD = fedper(train=LocalTraining(batch=40))
SITES = ("Basel", "Bern", "Chur")


def table(pandas, count=60):
    rng = np.random.default_rng(0)
    age, lab = rng.normal(60, 10, count), rng.normal(size=count)
    frame = pandas.DataFrame({"age": age, "sex": rng.choice(["f", "m"], count), "lab": lab})
    frame.loc[::7, "lab"] = np.nan
    frame.loc[::9, "sex"] = None
    return frame.assign(hospital=np.array(SITES)[np.arange(count) % 3], died=np.where(age > 60, "yes", "no"))


def fitted_on(data, **options):
    return stratafl.fit(METHOD, data, "mlp", rounds=1, engine="stacked", **options)


@pytest.mark.budget(2, "imports pandas")
def test_a_data_frame_is_read_as_a_file_of_its_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = table(pandas)
    fitted = fitted_on(frame, label="died", client="hospital")
    assert (fitted.client_names, fitted.classes) == (SITES, ("no", "yes"))
    assert set(fitted.sim.runtime.federation.column_names) > {"age", "sex=f", "lab missing"}
    outputs = fitted.client("Bern").outputs(frame)
    apart = {site: frame[frame.hospital == site].drop(columns="hospital") for site in SITES}
    assert torch.equal(fitted_on(apart, label="died").client("Bern").outputs(frame), outputs)
    loaded = stratafl.load(fitted.save(tmp_path / "saved"))
    assert torch.equal(loaded.client("Bern").outputs(frame), outputs)
    late = [each.add_client("Davos", frame[:20], frame.died[:20]).outputs(frame) for each in (fitted, loaded)]
    assert torch.equal(*late)
    for data, options, value in (
        (frame.head(0), {"label": "died", "client": "hospital"}, "no rows"),
        (frame, {}, "label"),
        (frame, {"label": "died"}, "client"),
        (frame, {"client": "hospital"}, "label"),
        (frame, {"label": "dead", "client": "hospital"}, "'dead'"),
        (frame, {"label": "died", "client": "ward"}, "'ward'"),
        (apart, {"label": "died", "client": "hospital"}, "client"),
        ({**apart, "Bern": apart["Bern"].drop(columns="sex")}, {"label": "died"}, "'sex'"),
        ({**apart, "Bern": (1, 2)}, {"label": "died"}, "'Bern'"),
        ([1, 2], {"label": "died"}, "list"),
        (frame, {"label": "died", "client": "hospital", "normalise": "all"}, "'all'"),
    ):
        with pytest.raises(StrataError, match=value) as error:
            fitted_on(data, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="'age'"):
        fitted.client(0).predict(frame.drop(columns="age"))
    with pytest.raises(DataError, match="'age'"):
        fitted.client(0).predict(dict(frame.iloc[0]))
    numbered = fitted_on(frame.assign(died=(frame.died == "yes") + 3), label="died", client="hospital")
    assert {*numbered.client(0).predict(frame).tolist()} <= {3, 4}


@pytest.mark.slow
def test_a_dataset_of_hugging_face_has_names_of_classes():
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    frame = table(pandas)
    data = datasets.Dataset.from_pandas(frame).class_encode_column("died")
    fitted = fitted_on(data, label="died", client="hospital")
    expected = fitted_on(frame, label="died", client="hospital")
    assert fitted.classes == ("no", "yes")
    assert torch.equal(fitted.client("Chur").outputs(frame), expected.client("Chur").outputs(frame))
