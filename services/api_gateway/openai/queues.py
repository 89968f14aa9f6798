"""The queues of all models in this gateway. Tests: tests/integration/test_openai_queues.py."""

from typing import TYPE_CHECKING

from libs.common.messages.outstanding import ModelDemand
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.errors import gateway_stopping
from services.api_gateway.openai.model_queue import ModelQueue
from services.api_gateway.openai.open_requests import OpenRequests
from services.api_gateway.openai.queue_settings import prefix_space
from services.api_gateway.serving.late_binding import LateBinding
from services.api_gateway.views.models import PRIORITIES

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway


class Queues:
    """The queues of all models in one gateway, and its open requests at replicas.

    All HTTP servers of the gateway share them. `requests_of` counts each tenant's waiting requests.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.open = OpenRequests()
        self.queues: dict[str, ModelQueue] = {}
        self.requests_of: dict[str, int] = {}
        self.prefixes = prefix_space(gateway.settings)
        self.is_stopping = False

    def of(self, name: str) -> ModelQueue:
        """Return the queue of a deployed model."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = ModelQueue(
                self.gateway, name, self.requests_of, self.prefixes
            )
        return found

    def get(self, name: str) -> ModelQueue | None:
        return self.queues.get(name)

    def rules_of(self, name: str) -> LateBinding[Endpoint] | None:
        """Return the rules of a model's queue; None before the first request."""
        queue = self.queues.get(name)
        return queue.rules if queue is not None else None

    def demand(self) -> dict[str, ModelDemand]:
        """Return the demand for each model that scales and has requests or recent ones."""
        return {
            name: queue.demand()
            for name, queue in self.queues.items()
            if self.gateway.models.scales(name)
        }

    def stop(self) -> None:
        """End the wait of all requests, and let no other wait. Those at replicas go on."""
        self.is_stopping = True
        for queue in self.queues.values():
            queue.refuse_all(gateway_stopping())

    def refresh(self) -> None:
        """Do what is due every few seconds, and drop the queues of models that are gone."""
        for name, queue in list(self.queues.items()):
            if self.gateway.models.get(name) is None:
                queue.refuse_all(queue.none_ready())
                if queue.is_idle:
                    del self.queues[name]
                    self.prefixes.remove(queue.rules.router.index)
            else:
                queue.refresh()
        self.gateway.telemetry.models.forget(self._is_gone)
        self.gateway.telemetry.models.queued(
            {name: queue.rules for name, queue in self.queues.items()}, PRIORITIES
        )

    def _is_gone(self, model: str) -> bool:
        return model not in self.queues and self.gateway.models.get(model) is None
