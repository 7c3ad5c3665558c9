"""The words in which a method is written: trees, records, models, data, contexts and the algorithm itself."""

from manyheads.contract.algorithm import Algorithm, Objective, Predictors, Sizes, Stage, Update
from manyheads.contract.checks import above, at_least, between, one_of
from manyheads.contract.context import ClientContext, Context, ServerContext
from manyheads.contract.data import Batch, Data
from manyheads.contract.model import Model, Predictor
from manyheads.contract.records import Broadcast, PrivateState, ServerState, Upload
from manyheads.contract.trainer import SGD, AdamW, Grad, Loss, Optimizer, Proximal, Terms
from manyheads.contract.tree import Part, Tree

__all__ = [
    "SGD",
    "AdamW",
    "Algorithm",
    "Batch",
    "Broadcast",
    "ClientContext",
    "Context",
    "Data",
    "Grad",
    "Loss",
    "Model",
    "Objective",
    "Optimizer",
    "Part",
    "Predictor",
    "Predictors",
    "PrivateState",
    "Proximal",
    "ServerContext",
    "ServerState",
    "Sizes",
    "Stage",
    "Terms",
    "Tree",
    "Update",
    "Upload",
    "above",
    "at_least",
    "between",
    "one_of",
]
