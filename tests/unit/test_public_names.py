"""The public names. A change here is a decision: docs/reference/stability.md says what it means for users."""

import dataclasses
import inspect

import pytest

import stratafl
from stratafl import methods
from stratafl.algorithms import ALGORITHMS
from stratafl.api.requests import OPTIONS, SharedOptions
from stratafl.config.setting_tables import TABLES

STRATAFL = """
fit compare tune advise load digits partition __version__
Fitted FittedClient Guarded Predictions CrossSiteResult ComparisonResult TuningResult AdviceResult
BestMethod StrataError
"""

# What users may rely on, and after "·" what is private by documentation: it has no docstring or leads to records.
ATTRIBUTES = {
    "Fitted": """
        accuracy add_client classes client client_names clients confusion cross_site folder guard guarded history metric
        name_of number_of predictions round save selected stage train
        export model outputs predict predictor
        · added counts evaluate progress saved selected_by sim split training trust
    """,
    "FittedClient": """
        confusion export fitted metric model name number outputs predict predict_proba predictor preprocessing state
    """,
    "Guarded": "accuracy choices model · models",
    "Predictions": """
        client clients labelled of scores y
        · at average by_client confusion guesses hits loss losses not_finite one_answer summed value
    """,
    "CrossSiteResult": "metric names split to_pandas values · measure of to_table",
    "ComparisonResult": "best fitted folder report to_pandas · study trust",
    "TuningResult": "best fitted folder methods report to_pandas · study trust tuning",
    "AdviceResult": "best config federate report to_pandas · advice",
    "BestMethod": "method score settings · count index",
}

METHODS = """
algorithm check SpecialCase
Algorithm Layerwise Phase Phased record warm_up
Filled Number Select ShareOfClients Start Together select
Batching Footprint MergeRows MergeSums Mix Send Serve Train field_names
ColumnMask Field Gradients LayerMask Layout Parcel Round Rows Setup Stack State Task
add_rows add_weights keys mean_or_hold per_row rows_of tensor_of
Edit Follower GradientAt GradientRule Projection Rate
Batch CrossEntropy Frozen Loss Net Objective cross_entropies
Accuracy Adopt Broadcast Clamp Constant Copy Cosine Deliver Exponential Fresh Increment LocalTraining Mean MeanOfRows
Prepare Pull Remember ServerOptimizer Stepped StoreRows Take Upload Warmup
Fixed Range Tune
Assignment Partition Pool
"""


def public(cls: type) -> set[str]:
    """The names of a class that do not begin with an underscore."""
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return {name for name in {*dir(cls), *fields} if not name.startswith("_")}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_attributes_of_results(name):
    cls, listed = getattr(stratafl, name), ATTRIBUTES[name].replace("·", "").split()
    assert public(cls) == set(listed)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_what_is_public_is_documented(name):
    cls = getattr(stratafl, name)
    for attribute in ATTRIBUTES[name].partition("·")[0].split():
        documented = f"        {attribute}: " in (cls.__doc__ or "")
        assert documented or (getattr(cls, attribute).__doc__ or "").strip(), f"{name}.{attribute} has no docstring"


@pytest.mark.parametrize("name", ["fit", "compare", "tune", "advise", "load", "digits", "partition"])
def test_every_argument_of_a_function_is_documented(name):
    function = getattr(stratafl, name)
    for argument in inspect.signature(function).parameters:
        assert f"\n        {argument}: " in inspect.cleandoc(function.__doc__).replace("\n    ", "\n        "), argument


def test_the_shared_options_are_those_of_the_settings():
    assert set(SharedOptions.__annotations__) == set(OPTIONS)
    assert {path.partition(".")[0] for path in OPTIONS.values()} <= set(TABLES)


def test_the_names_of_stratafl():
    assert sorted(stratafl.__all__) == sorted(STRATAFL.split())
    assert all(getattr(stratafl, name) is not None for name in stratafl.__all__)


def test_the_names_for_authors_of_methods():
    assert len(methods.__all__) == len(set(methods.__all__))
    assert set(methods.__all__) == {*METHODS.split(), *ALGORITHMS}
    assert all(getattr(methods, name) is not None for name in methods.__all__)
    assert all(getattr(methods, name) is builder for name, builder in ALGORITHMS.items())
