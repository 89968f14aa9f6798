"""All answers of one gateway to the questions of agents."""

from typing import TYPE_CHECKING

from services.api_gateway.agents.secret_answers import SecretAnswers
from services.api_gateway.agents.upload_answers import UploadAnswers
from services.api_gateway.agents.weight_answers import WeightAnswers
from services.api_gateway.diagnosis.asking import Evidence
from services.api_gateway.diagnosis.silence import SilenceAnswers

if TYPE_CHECKING:
    from libs.common.state.cluster import Cluster
    from services.api_gateway.gateway import Gateway


class AgentAnswers:
    """Secrets, uploads, sources of kept weights, and jobs without progress.

    `evidence` collects what nodes know about a stuck job.
    """

    def __init__(self, gateway: "Gateway") -> None:
        def cluster() -> "Cluster":
            return gateway.cluster

        self.secrets = SecretAnswers(cluster, gateway.bus, gateway.vault)
        self.uploads = UploadAnswers(cluster, gateway.bus, gateway.uploads)
        self.weights = WeightAnswers(cluster, gateway.bus)
        self.evidence = Evidence(gateway.bus, gateway.slots)
        self.silence = SilenceAnswers(gateway, self.evidence)

    async def listen(self) -> None:
        await self.secrets.listen()
        await self.uploads.listen()
        await self.weights.listen()
        await self.silence.listen()
