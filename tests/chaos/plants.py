"""Faults that the ledger must find: activities that do not survive the death of their process."""

from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from api.resources import CONFIG_MAP
from kube.client import KubeClient
from tests.chaos.ledger import Finding
from tests.chaos.points import Moment, Point

NAMESPACE = "default"
LABEL = "test.cloud/planted"


def _config_map(**metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": NAMESPACE, "labels": {LABEL: "true"}, **metadata},
    }


class Plant(Interceptor):
    """An activity with a fault."""

    activity: str
    """Activity that has the fault."""
    moment: Moment
    """Moment at which a process must be killed for the fault to have an effect."""
    shows: str
    """Kind of finding and name of the object that the ledger must report then."""

    def __init__(self, seed: KubeClient) -> None:
        self.seed = seed

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Faulty(next, self)

    async def begin(self) -> None:
        """Called before the activity."""

    async def end(self) -> None:
        """Called after the activity."""


class _Faulty(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, plant: Plant) -> None:
        super().__init__(next)
        self._plant = plant

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        concerned = activity.info().activity_type == self._plant.activity
        if concerned:
            await self._plant.begin()
        answer = await super().execute_activity(input)
        if concerned:
            await self._plant.end()
        return answer


class Doubling(Plant):
    """Each run creates an object, whose name the API server generates."""

    activity = "deploy_seed_priority_classes"
    moment = Moment.AFTER
    shows = "doubled: configmaps default/planted-*"

    async def begin(self) -> None:
        await self.seed.create(_config_map(generateName="planted-"))


class Leaking(Plant):
    """Each attempt has a helper of its own, and deletes that one alone."""

    activity = "deploy_seed_excess_capacity"
    moment = Moment.AMID
    shows = "left over: configmaps default/planted-helper-1"

    async def begin(self) -> None:
        await self.seed.create(_config_map(name=self._name()))

    async def end(self) -> None:
        await self.seed.delete(CONFIG_MAP, self._name(), NAMESPACE)

    def _name(self) -> str:
        return f"planted-helper-{activity.info().attempt}"


class Omitting(Plant):
    """A run notes that all is done before it is done."""

    activity = "deploy_seed_ingress_dns"
    moment = Moment.AMID
    shows = "left out: configmaps default/planted-work"

    async def begin(self) -> None:
        if await self.seed.find(CONFIG_MAP, "planted-note", NAMESPACE) is None:
            await self.seed.create(_config_map(name="planted-note"))
            await self.seed.create(_config_map(name="planted-work"))


PLANTS = (Doubling, Leaking, Omitting)


def planted_points() -> list[Point]:
    """Points at which a process must be killed for each fault to have an effect."""
    return [Point(each.activity, each.moment) for each in PLANTS]


def shows(plant: type[Plant], finding: Finding) -> bool:
    """Whether a finding shows this fault."""
    return str(finding).startswith(f"{plant.shows} ")
