"""The one module that the author of a method imports. What it lists is public; the modules behind it are not.

    from stratafl.methods import LocalTraining, Start, fedavg, record, select, Mix, rows_of, check

    check(my_method())              # raises a ContractError that names the law your method breaks

| to | |
|---|---|
| make a method | `Layerwise`, or `Phased` and `Phase` for several phases; `record` for records of your own |
| declare state | `Start`, `Filled`, `Number`, `Together`; layers by `select` |
| write a step | derive from `Serve`, `Mix`, `Train`, `Send`, `MergeSums` or `MergeRows` |
| use a step that exists | `LocalTraining`, `Broadcast`, `Take`, `Upload`, `Mean` and the other policies |
| read what a step gets | `Round`, `Task`, `State`, `Parcel`; `rows_of`, `tensor_of`, `per_row`, `keys` |
| shape training | `Objective` for another loss; `Edit`, `Rate`, `GradientRule`, `Follower`, `Projection` |
| say what may be tuned | `Range`, `Tune`, `Fixed` in the annotations of the builder |
| start from a method of the catalogue | its builder, such as `fedavg`, or `algorithm("fedper+flayer")` |
| divide samples among clients in a way of your own | `Partition`, which gets a `Pool` and may return an `Assignment` |
| check a method | `check`, and `SpecialCase` for options with which it must equal a simpler method |
"""

from stratafl.algorithms import (
    algorithm,
    apple,
    ditto,
    fedala,
    fedalp,
    fedamp,
    fedas,
    fedavg,
    fedavg30local,
    fedavgft,
    fedavglpft,
    fedbabu,
    fedbias,
    fedbn,
    fedcac,
    fedcp,
    feddbe,
    fedexp,
    fedfomo,
    fedlag,
    fedopt,
    fedpac,
    fedper,
    fedprior,
    fedprox,
    fedrep,
    fedrod,
    fedstrata,
    flayer,
    gpfl,
    heurfedamp,
    heurpfedla,
    ifca,
    lgfedavg,
    local,
    moon,
    perfedavg,
    pfedhn,
    pfedhnpc,
    pfedla,
    pfedme,
    scaffold,
    simmix,
)
from stratafl.core import keys
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Filled, Number, ShareOfClients, Start, Together
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.objectives import Batch, CrossEntropy, Frozen, Loss, Net, Objective, cross_entropies
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.phased import Phase, Phased, warm_up
from stratafl.core.records import record
from stratafl.core.reduce import add_rows, add_weights, mean_or_hold
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Batching, MergeRows, MergeSums, Mix, Send, Serve, Train, field_names
from stratafl.core.task import Gradients, Stack, Task
from stratafl.data.partitions import Assignment, Partition, Pool
from stratafl.policies import (
    Accuracy,
    Adopt,
    Broadcast,
    Clamp,
    Constant,
    Copy,
    Cosine,
    Deliver,
    Exponential,
    Fresh,
    Increment,
    LocalTraining,
    Mean,
    MeanOfRows,
    Prepare,
    Pull,
    Remember,
    ServerOptimizer,
    Stepped,
    StoreRows,
    Take,
    Upload,
    Warmup,
)
from stratafl.policies.descent import Edit, Follower, GradientAt, GradientRule, Projection, Rate
from stratafl.testing import SpecialCase
from stratafl.testing import check_algorithm as check

__all__ = [
    "Accuracy",
    "Adopt",
    "Algorithm",
    "Assignment",
    "Batch",
    "Batching",
    "Broadcast",
    "Clamp",
    "ColumnMask",
    "Constant",
    "Copy",
    "Cosine",
    "CrossEntropy",
    "Deliver",
    "Edit",
    "Exponential",
    "Field",
    "Filled",
    "Fixed",
    "Follower",
    "Footprint",
    "Fresh",
    "Frozen",
    "GradientAt",
    "GradientRule",
    "Gradients",
    "Increment",
    "LayerMask",
    "Layerwise",
    "Layout",
    "LocalTraining",
    "Loss",
    "Mean",
    "MeanOfRows",
    "MergeRows",
    "MergeSums",
    "Mix",
    "Net",
    "Number",
    "Objective",
    "Parcel",
    "Partition",
    "Phase",
    "Phased",
    "Pool",
    "Prepare",
    "Projection",
    "Pull",
    "Range",
    "Rate",
    "Remember",
    "Round",
    "Rows",
    "Select",
    "Send",
    "Serve",
    "ServerOptimizer",
    "Setup",
    "ShareOfClients",
    "SpecialCase",
    "Stack",
    "Start",
    "State",
    "Stepped",
    "StoreRows",
    "Take",
    "Task",
    "Together",
    "Train",
    "Tune",
    "Upload",
    "Warmup",
    "add_rows",
    "add_weights",
    "algorithm",
    "apple",
    "check",
    "cross_entropies",
    "ditto",
    "fedala",
    "fedalp",
    "fedamp",
    "fedas",
    "fedavg",
    "fedavg30local",
    "fedavgft",
    "fedavglpft",
    "fedbabu",
    "fedbias",
    "fedbn",
    "fedcac",
    "fedcp",
    "feddbe",
    "fedexp",
    "fedfomo",
    "fedlag",
    "fedopt",
    "fedpac",
    "fedper",
    "fedprior",
    "fedprox",
    "fedrep",
    "fedrod",
    "fedstrata",
    "field_names",
    "flayer",
    "gpfl",
    "heurfedamp",
    "heurpfedla",
    "ifca",
    "keys",
    "lgfedavg",
    "local",
    "mean_or_hold",
    "moon",
    "per_row",
    "perfedavg",
    "pfedhn",
    "pfedhnpc",
    "pfedla",
    "pfedme",
    "record",
    "rows_of",
    "scaffold",
    "select",
    "simmix",
    "tensor_of",
    "warm_up",
]
