"""Tracking services by config, kind "logger". metrics.csv is written in any case."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from zoo.registry import Config, ConfigError, register


class LoggerConfig(Config):
    """Base of loggers. `build` gives Lightning's loggers, which open nothing before training starts."""

    kind: ClassVar[str] = "logger"

    def build(self, out: Path, run: str) -> list[Any]:
        """Loggers for the run `run` in the folder `out`. Raises ConfigError where the package is missing."""
        raise NotImplementedError


@register("logger", "csv")
class Csv(LoggerConfig):
    """metrics.csv in the run folder, and nothing else."""

    def build(self, out: Path, run: str) -> list[Any]:
        return []


@register("logger", "tensorboard")
class TensorBoard(LoggerConfig):
    """TensorBoard event files in RUN_DIR/tensorboard, beside metrics.csv."""

    def build(self, out: Path, run: str) -> list[Any]:
        from lightning.pytorch.loggers import TensorBoardLogger

        try:
            return [TensorBoardLogger(save_dir=out, name="tensorboard", version="")]
        except ModuleNotFoundError:
            raise ConfigError("needs tensorboard: pip install tensorboard", "logger") from None


@register("logger", "mlflow")
class MLflow(LoggerConfig):
    """MLflow, by default in RUN_DIR/mlflow.db (sqlite), beside metrics.csv."""

    uri: str | None = None
    """Tracking server or database; null: sqlite:///RUN_DIR/mlflow.db. Name one place to compare runs."""
    experiment: str = "zoo"

    def build(self, out: Path, run: str) -> list[Any]:
        from lightning.pytorch.loggers import MLFlowLogger

        uri = self.uri or f"sqlite:///{out.absolute() / 'mlflow.db'}"
        place = None if self.uri else str(out.absolute() / "mlflow-artifacts")
        try:
            return [MLFlowLogger(self.experiment, run_name=run, tracking_uri=uri, artifact_location=place)]
        except ModuleNotFoundError:
            raise ConfigError("needs mlflow: pip install mlflow", "logger") from None
