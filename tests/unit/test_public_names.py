"""The public names. A change here is a decision: docs/reference/stability.md says what it means for users."""

import stratafl
from stratafl import methods
from stratafl.algorithms import ALGORITHMS

STRATAFL = "Fitted __version__ advise compare fit load tune"

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
"""


def test_the_names_of_stratafl():
    assert sorted(stratafl.__all__) == sorted(STRATAFL.split())
    assert all(getattr(stratafl, name) is not None for name in stratafl.__all__)


def test_the_names_for_authors_of_methods():
    assert len(methods.__all__) == len(set(methods.__all__))
    assert set(methods.__all__) == {*METHODS.split(), *ALGORITHMS}
    assert all(getattr(methods, name) is not None for name in methods.__all__)
    assert all(getattr(methods, name) is builder for name, builder in ALGORITHMS.items())
