"""Choose the models that have series of their own in a gateway's metrics; the others share one.

Pure. A request is counted under one label from its beginning to its end. Tests:
tests/unit/test_model_labels.py.
"""

from collections.abc import Callable
from typing import Final

# Models beyond this number share one series.
MODELS_MAX: Final = 256
OTHER_MODELS: Final = "other"


class ModelLabels:
    """The labels of one gateway.

    `own` are the models with series of their own, `shared` others with open requests; each with the
    number of its open requests.
    """

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.shared: dict[str, int] = {}

    def of(self, model: str) -> str:
        """Return the label of a model. It gets its own if one is free and no request of it is
        counted under the shared one.
        """
        if model in self.own:
            return model
        if model in self.shared or len(self.own) >= MODELS_MAX:
            return OTHER_MODELS
        self.own[model] = 0
        return model

    def began(self, model: str) -> str:
        """Return the label for a request that begins."""
        label = self.of(model)
        if model in self.own:
            self.own[model] += 1
        else:
            self.shared[model] = self.shared.get(model, 0) + 1
        return label

    def ended(self, model: str) -> str:
        """Return the label of a request that ends."""
        label = self.of(model)
        if model in self.own:
            self.own[model] -= 1
        else:
            self.shared[model] -= 1
            if not self.shared[model]:
                del self.shared[model]
        return label

    def forget(self, is_gone: Callable[[str], bool]) -> list[str]:
        """If no label is free, free those of models that are gone and have no open requests, and
        return them.

        Until then their series stay, so that Prometheus reads their last values.
        """
        if len(self.own) < MODELS_MAX:
            return []
        gone = [name for name, requests in self.own.items() if not requests and is_gone(name)]
        for name in gone:
            del self.own[name]
        return gone
