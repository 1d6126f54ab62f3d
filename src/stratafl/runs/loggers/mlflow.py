"""MLflow: a run in the experiment `stratafl`, wherever MLFLOW_TRACKING_URI says."""

import time
from collections.abc import Mapping
from typing import Any

from stratafl.runs.loggers import About

EXPERIMENT, KEY, MARK = "stratafl", "stratafl.key", "round"
LONGEST = 500  # letters of a parameter


class MLflow:
    """Metrics by round; rounds that were sent before an interruption are not sent again."""

    def __init__(self, about: About) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        self._run = self._found(about) or self._created(about)
        history = self._client.get_metric_history(self._run, MARK)
        self._last = max((entry.step for entry in history), default=0)

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        return str(found.experiment_id if found else self._client.create_experiment(EXPERIMENT))

    def _found(self, about: About) -> str | None:
        runs = self._client.search_runs([self._experiment()], filter_string=f"tags.`{KEY}` = '{about.key}'")
        return str(runs[0].info.run_id) if runs else None

    def _created(self, about: About) -> str:
        tags = {KEY: about.key, "stratafl.folder": str(about.folder)}
        run = str(self._client.create_run(self._experiment(), tags=tags, run_name=about.name).info.run_id)
        for name, value in about.settings.items():
            self._client.log_param(run, name, str(value)[:LONGEST])
        return run

    def log(self, number: int, numbers: Mapping[str, float]) -> None:
        if number > self._last:
            now = int(1000 * time.time())
            metrics: list[Any] = [self._metric(k, v, now, number) for k, v in {**numbers, MARK: number}.items()]
            self._client.log_batch(self._run, metrics=metrics)
            self._last = number

    def close(self) -> None:
        self._client.set_terminated(self._run)


def opened(about: About, first: int) -> MLflow:
    return MLflow(about)
