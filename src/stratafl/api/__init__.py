"""stratafl in a notebook: train on your own samples and module, and get every client's model.

fitted = stratafl.fit("fedper", {"Basel": (x, y), …}, model, rounds=20)    or a list of (x, y), clients are then numbers
basel = fitted.client("Basel")
basel.predict(x)               predictions of Basel's own model for raw samples, as the data calls classes
basel.predict_proba(x)         the probability of each of `fitted.classes`
basel.model                    that model, an nn.Module that takes preprocessed samples
basel.predictor                the model with its preprocessing: it takes raw samples, as predict does
basel.export("basel.onnx")     or .safetensors
fitted.metric("auroc")         of all clients' models on their test samples; also your own f(y_true, y_score)

clients = stratafl.digits(alpha=0.3)                               the digits of the package; also partition(x, y)
result = stratafl.compare("local,fedavg,fedper", clients, model)    the command of this name; also tune and advise
"""

from stratafl.api.advising import advise
from stratafl.api.comparing import compare, tune
from stratafl.api.fitted import Fitted
from stratafl.api.fitted_client import FittedClient
from stratafl.api.fitting import fit, load
from stratafl.api.guarded import Guarded
from stratafl.api.partitioned import digits, partition
from stratafl.api.results import AdviceResult, BestMethod, ComparisonResult, TuningResult
from stratafl.errors import StrataError
from stratafl.evaluation.predictions import Predictions
from stratafl.report.notebook import CrossSiteResult

__all__ = ["AdviceResult", "BestMethod", "ComparisonResult", "CrossSiteResult", "Fitted", "FittedClient", "Guarded"]
__all__ += ["Predictions", "StrataError", "TuningResult", "advise", "compare", "digits", "fit", "load"]
__all__ += ["partition", "tune"]
