"""FedAvg.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.

Every client of the cohort trains the received model for E epochs of SGD; the next model is their mean, weighted by the
numbers of train images.

Details that matter: the weights are normalised over the clients that returned; BatchNorm's statistics are averaged like
the weights. The global model is measured on the whole test set and on each client's, which are different numbers.
"""

from dataclasses import dataclass

from manyheads.contract import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """One model for all: the average of what the clients trained."""
