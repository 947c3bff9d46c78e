"""Rotations of a Shoot's credentials: each lives from start to completion, through the owner's days of thinking.

prepare (new beside old) -> worker pools roll, if that was put off -> prepared: the owner's clients follow
-> complete (the old ones go). Phases: spec/credentials.md 3; the Shoot's status holds them, and its lifecycle
reconciles it. A rotation sees what comes of that, asks for what needs no owner, and proves before the
completion that nobody known is left behind.
"""

from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.garden.rotation import GardenRotationActivities
    from activities.shoot.rotation import RotationActivities
    from api.constants import OPERATION_RECONCILE
    from api.operations import lifecycle_id, seed_queue
    from api.rotation import (
        COMPLETION,
        CompleteRotation,
        Kind,
        Phase,
        RotationInput,
        RotationStep,
        RotationView,
        Survey,
        SurveyReport,
        SurveyRequest,
    )
    from workflows import options
    from workflows.versioning import long_lived

_NAMES = {
    Kind.CERTIFICATE_AUTHORITIES: "ca",
    Kind.SERVICE_ACCOUNT_KEY: "serviceaccount-key",
    Kind.ETCD_ENCRYPTION_KEY: "etcd-encryption-key",
    Kind.SSH_KEYPAIR: "ssh-keypair",
    Kind.OBSERVABILITY: "observability-passwords",
}


_LOOK_MINUTES = 3


class _Unanswered(ApplicationError):
    """Nobody can be asked who needs the old credentials."""


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def rotation_id(request: RotationInput) -> str:
    """Workflow id of a rotation."""
    return f"{lifecycle_id(request.shoot)}/rotate-{_NAMES[request.kind]}/{request.initiated}"


class _Rotation:
    """What all rotations have in common. Workflow id: ``<lifecycle id>/rotate-<what>/<start time>``."""

    @workflow.init
    def __init__(self, request: RotationInput) -> None:
        self._request = request
        self._view = RotationView()
        self._survey: Survey | None = None

    @workflow.query
    def progress(self) -> RotationView:
        """How far it is."""
        return self._view

    @workflow.update
    async def look(self) -> Survey:
        """Who needs the old credentials now."""
        await workflow.wait_condition(lambda: bool(self._view.technical_id))
        return await self._look()

    @workflow.update
    async def complete(self, request: CompleteRotation) -> str:
        """Have the old credentials dropped; returns once that is accepted, not when it is done.

        Raises ApplicationError ``OldCredentialsInUse``, naming who needs them or why nobody can be asked, unless it is
        forced.
        """
        try:
            found = str(await self._look())
        except _Unanswered as error:
            found = error.message
        if found and not request.force:
            raise ApplicationError(
                f"the rotation of the {self._request.kind.words} of Shoot {self._request.shoot} cannot be "
                f"completed: {found}",
                type="OldCredentialsInUse",
                non_retryable=True,
            )
        forced = f"{request.reason.strip()} (by {request.by or 'unknown'})" if request.force else ""
        await self._ask_for(COMPLETION[self._request.kind], forced)
        return f"the old {self._request.kind.words} of Shoot {self._request.shoot} are being dropped"

    @complete.validator
    def _check_complete(self, request: CompleteRotation) -> None:
        phase = self._phase
        if phase is not Phase.PREPARED:
            raise ValueError(
                f"the rotation of the {self._request.kind.words} of Shoot {self._request.shoot} is "
                f"{phase or 'starting'}, must be {Phase.PREPARED}"
            )
        if request.force and not request.reason.strip():
            raise ValueError("who leaves users of the old credentials behind must give a reason")

    async def accompany(self) -> None:
        """Follow the rotation to its end."""
        while True:
            self._view = await workflow.execute_activity_method(
                GardenRotationActivities.await_rotation, self._request, **options.follow("Wait for the next phase")
            )
            self._request = self._request.model_copy(update={"seen": self._phase, "seen_in": self._view.seed})
            self._show()
            if self._view.rotation is None:
                break
            if self._phase is Phase.PREPARED:
                with suppress(_Unanswered):  # asked again before anything depends on it
                    await self._look()
            if not self._view.owners_turn:
                await self._ask_for(OPERATION_RECONCILE)
            if workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._request)
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _look(self) -> Survey:
        """Raises ``_Unanswered`` if the cluster cannot be asked for minutes: while it sleeps, or moves."""
        view = self._view
        self._survey = None
        try:
            self._survey = await workflow.execute_activity_method(
                RotationActivities.find_users_of_old_credentials,
                SurveyRequest(
                    shoot=self._request.shoot, technical_id=view.technical_id, seed=view.seed, kind=self._request.kind
                ),
                **options.bounded(
                    options.look(seed_queue(view.seed), "Find who needs the old credentials"), minutes=_LOOK_MINUTES
                ),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise _Unanswered(
                f"Shoot {self._request.shoot} cannot be asked who needs the old ones: {_root(error)}; is it asleep?",
                type="Unanswered",
                non_retryable=True,
            ) from None
        await workflow.execute_activity_method(
            GardenRotationActivities.report_survey,
            SurveyReport(shoot=self._request.shoot, kind=self._request.kind, survey=self._survey),
            **options.garden_call("Say who needs the old credentials"),
        )
        self._show()
        return self._survey

    async def _ask_for(self, operation: str, forced: str = "") -> None:
        await workflow.execute_activity_method(
            GardenRotationActivities.request_rotation_step,
            RotationStep(
                shoot=self._request.shoot,
                kind=self._request.kind,
                phase=self._phase,
                operation=operation,
                forced=forced,
            ),
            **options.garden_call(f"Ask for {operation}"),
        )

    @property
    def _phase(self) -> Phase:
        return self._view.rotation.phase if self._view.rotation else Phase.NONE

    def _show(self) -> None:
        lines = [f"{self._request.kind.words} of Shoot `{self._request.shoot}`: **{self._phase or 'over'}**"]
        if self._phase is Phase.PREPARED and self._survey is not None:
            lines += [f"- {each}; {each.remedy}" for each in self._survey.users] or ["Nobody known needs the old ones."]
        workflow.set_current_details("\n".join(lines))


@workflow.defn(versioning_behavior=long_lived())
class RotateCertificateAuthorities(_Rotation):
    """New certificate authorities, and certificates by them."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.accompany()


@workflow.defn(versioning_behavior=long_lived())
class RotateServiceAccountKey(_Rotation):
    """A new key for the tokens of service accounts."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.accompany()


@workflow.defn(versioning_behavior=long_lived())
class RotateETCDEncryptionKey(_Rotation):
    """A new key for what is stored in etcd."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.accompany()


@workflow.defn(versioning_behavior=long_lived())
class RotateSSHKeypair(_Rotation):
    """A new SSH key pair for the machines; done with the next reconcile that succeeds."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.accompany()


@workflow.defn(versioning_behavior=long_lived())
class RotateObservabilityPasswords(_Rotation):
    """New passwords for what users see of their control plane; done with the next reconcile that succeeds."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.accompany()


ROTATIONS: dict[Kind, Any] = {
    Kind.CERTIFICATE_AUTHORITIES: RotateCertificateAuthorities,
    Kind.SERVICE_ACCOUNT_KEY: RotateServiceAccountKey,
    Kind.ETCD_ENCRYPTION_KEY: RotateETCDEncryptionKey,
    Kind.SSH_KEYPAIR: RotateSSHKeypair,
    Kind.OBSERVABILITY: RotateObservabilityPasswords,
}
"""Workflow of each kind."""
