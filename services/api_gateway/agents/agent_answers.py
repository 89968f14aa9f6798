"""All answers of one gateway to the questions of agents."""

from collections.abc import Callable

from libs.common.state.cluster import Cluster
from libs.common.transport.bus import Bus
from libs.common.transport.uploads import UploadStore
from services.api_gateway.agents.secret_answers import SecretAnswers
from services.api_gateway.agents.upload_answers import UploadAnswers
from services.api_gateway.agents.weight_answers import WeightAnswers
from services.api_gateway.secrets.vault import Vault


class AgentAnswers:
    """Secrets, uploads, and sources of kept weights."""

    def __init__(
        self, cluster: Callable[[], Cluster], bus: Bus, vault: Vault, uploads: UploadStore
    ) -> None:
        self.secrets = SecretAnswers(cluster, bus, vault)
        self.uploads = UploadAnswers(cluster, bus, uploads)
        self.weights = WeightAnswers(cluster, bus)

    async def listen(self) -> None:
        await self.secrets.listen()
        await self.uploads.listen()
        await self.weights.listen()
