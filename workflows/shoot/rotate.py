"""Rotations of a Shoot's credentials: one workflow from the start of a rotation to its completion, days later.

prepare (old and new credentials are valid) -> roll out worker pools, if that was deferred -> prepared: users switch
their clients to the new credentials -> complete (only the new credentials are valid). Phases: spec/credentials.md 3.
The Shoot's status holds the phase, and the Shoot's lifecycle reconciles it. The workflow here waits for each phase,
requests the steps that need no decision of the owner, and finds out before the completion which clients still use the
old credentials.
"""

from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.garden.rotation import GardenRotationActivities
    from activities.shoot.rotation import RotationActivities
    from api.constants import OPERATION_RECONCILE
    from api.contracts.operations import lifecycle_id, seed_queue
    from api.contracts.rotation import (
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
    from api.decisions.rotation import COMPLETION
    from workflows import options
    from workflows.versioning import long_lived

_NAMES = {
    Kind.CERTIFICATE_AUTHORITIES: "ca",
    Kind.SERVICE_ACCOUNT_KEY: "serviceaccount-key",
    Kind.ETCD_ENCRYPTION_KEY: "etcd-encryption-key",
    Kind.SSH_KEYPAIR: "ssh-keypair",
    Kind.OBSERVABILITY: "observability-passwords",
}


_SURVEY_MINUTES = 3
"""Time in which the gardenlet must find the users of old credentials, with all retries."""


class _Unanswered(ApplicationError):
    """The cluster cannot be asked which clients use the old credentials."""


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def rotation_id(request: RotationInput) -> str:
    """Workflow id of a rotation."""
    return f"{lifecycle_id(request.shoot)}/rotate-{_NAMES[request.kind]}/{request.initiated}"


class _Rotation:
    """Base of the workflows of all kinds of rotations. Id: ``<lifecycle id>/rotate-<kind>/<start time>``."""

    @workflow.init
    def __init__(self, request: RotationInput) -> None:
        self._request = request
        self._view = RotationView()
        self._survey: Survey | None = None
        self._over = False

    @workflow.query
    def progress(self) -> RotationView:
        """Phase of the rotation, and the seed of the Shoot."""
        return self._view

    @workflow.update
    async def look(self) -> Survey:
        """Find the clients that still use the old credentials."""
        await workflow.wait_condition(lambda: bool(self._view.technical_id) or self._over)
        if self._over:
            raise ApplicationError(self._is("over"), type="Over", non_retryable=True)
        return await self._find_users()

    @workflow.update
    async def complete(self, request: CompleteRotation) -> str:
        """Request the completion; returns once it is accepted, not when the old credentials are dropped.

        Raises:
            ApplicationError: ``NotPrepared``, or, unless the request is forced, ``OldCredentialsInUse``: its message
                names the clients that use the old credentials, or says why the cluster cannot be asked.
        """
        if not self._knows_phase:
            await workflow.wait_condition(lambda: self._knows_phase)
            if fault := self._not_prepared():
                raise ApplicationError(fault, type="NotPrepared", non_retryable=True)
        try:
            found = str(await self._find_users())
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
        # A workflow that has just started, or continues as new, reads the phase first.
        if self._knows_phase and (fault := self._not_prepared()):
            raise ValueError(fault)
        if request.force and not request.reason.strip():
            raise ValueError("a forced completion needs a reason: clients that use the old credentials lose access")

    @property
    def _knows_phase(self) -> bool:
        return self._view.rotation is not None or self._over

    def _not_prepared(self) -> str:
        """Why the rotation cannot be completed in its phase; empty if it can."""
        phase = self._phase
        return "" if phase is Phase.PREPARED else self._is(f"{phase or 'over'}, must be {Phase.PREPARED}")

    def _is(self, what: str) -> str:
        return f"the rotation of the {self._request.kind.words} of Shoot {self._request.shoot} is {what}"

    async def track(self) -> None:
        """Wait for each phase of the rotation and request the next step, until the rotation has ended."""
        while True:
            self._view = await workflow.execute_activity_method(
                GardenRotationActivities.await_rotation, self._request, **options.background("Wait for the next phase")
            )
            seen = {"seen": self._phase, "seen_in": self._view.seed, "seen_turn": self._view.owners_turn}
            self._request = self._request.model_copy(update=seen)
            self._show()
            if self._view.rotation is None:
                self._over = True
                break
            if self._phase is Phase.PREPARED:
                with suppress(_Unanswered):  # `complete` asks the cluster again
                    await self._find_users()
            if not self._view.owners_turn:
                await self._ask_for(OPERATION_RECONCILE)
            if workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                # Without what was seen, the new run looks at once. Until then it knows no phase.
                request = self._request
                workflow.continue_as_new(
                    RotationInput(shoot=request.shoot, kind=request.kind, initiated=request.initiated)
                )
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _find_users(self) -> Survey:
        """Find the clients that use the old credentials, and report them in the Shoot's constraints.

        Raises:
            _Unanswered: the cluster did not answer within ``_SURVEY_MINUTES``, for example because it is hibernated or
                its control plane moves.
        """
        view = self._view
        self._survey = None
        try:
            self._survey = await workflow.execute_activity_method(
                RotationActivities.find_users_of_old_credentials,
                SurveyRequest(
                    shoot=self._request.shoot, technical_id=view.technical_id, seed=view.seed, kind=self._request.kind
                ),
                **options.bounded(
                    options.seed_query(seed_queue(view.seed), "Find users of old credentials"), minutes=_SURVEY_MINUTES
                ),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise _Unanswered(
                f"Shoot {self._request.shoot} cannot be asked for users of the old credentials: {_root(error)}; "
                "is it hibernated?",
                type="Unanswered",
                non_retryable=True,
            ) from None
        await workflow.execute_activity_method(
            GardenRotationActivities.report_survey,
            SurveyReport(shoot=self._request.shoot, kind=self._request.kind, survey=self._survey),
            **options.garden_call("Report users of old credentials"),
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
            **options.garden_call(f"Request {operation}"),
        )

    @property
    def _phase(self) -> Phase:
        return self._view.rotation.phase if self._view.rotation else Phase.NONE

    def _show(self) -> None:
        lines = [f"{self._request.kind.words} of Shoot `{self._request.shoot}`: **{self._phase or 'over'}**"]
        if self._phase is Phase.PREPARED and self._survey is not None:
            users = [f"- {each}; {each.remedy}" for each in self._survey.users]
            lines += users or ["No known client uses the old credentials."]
        workflow.set_current_details("\n".join(lines))


@workflow.defn(versioning_behavior=long_lived())
class RotateCertificateAuthorities(_Rotation):
    """Rotate the certificate authorities, and all certificates that they issued."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.track()


@workflow.defn(versioning_behavior=long_lived())
class RotateServiceAccountKey(_Rotation):
    """Rotate the key that signs tokens of service accounts."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.track()


@workflow.defn(versioning_behavior=long_lived())
class RotateETCDEncryptionKey(_Rotation):
    """Rotate the key that encrypts resources in etcd."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.track()


@workflow.defn(versioning_behavior=long_lived())
class RotateSSHKeypair(_Rotation):
    """Rotate the SSH key pair of the machines; the next successful reconcile completes it."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.track()


@workflow.defn(versioning_behavior=long_lived())
class RotateObservabilityPasswords(_Rotation):
    """Rotate the passwords of the observability endpoints; the next successful reconcile completes it."""

    @workflow.run
    async def run(self, request: RotationInput) -> None:
        await self.track()


ROTATIONS: dict[Kind, Any] = {
    Kind.CERTIFICATE_AUTHORITIES: RotateCertificateAuthorities,
    Kind.SERVICE_ACCOUNT_KEY: RotateServiceAccountKey,
    Kind.ETCD_ENCRYPTION_KEY: RotateETCDEncryptionKey,
    Kind.SSH_KEYPAIR: RotateSSHKeypair,
    Kind.OBSERVABILITY: RotateObservabilityPasswords,
}
"""Workflow of each kind."""
