"""Changes of the binding of a Shoot. Source: spec/api-core.md 1.1, 10.2, "Binding switch"."""

from __future__ import annotations

from api import resources
from api.core.v1beta1.shoot import Shoot
from api.decisions.credentials import BINDINGS, Credentials
from workers.admission.review import Garden, Refusal, Review


async def check_binding_switch(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """A Shoot with a SecretBinding may change once to a CredentialsBinding, which must be for the same Secret.

    Other credentials may belong to another account of the cloud, which does not have the Shoot's machines. A Shoot with
    a CredentialsBinding may change to another one: a change of its credentials needs rights on both credentials.
    """
    before = old.spec.secret_binding_name if old is not None else None
    if before is None:
        return
    if shoot.spec.secret_binding_name not in (None, before):
        raise Refusal.forbidden(
            review, f"spec.secretBindingName: must stay {before}, or move to spec.credentialsBindingName"
        )
    after = shoot.spec.credentials_binding_name
    if after is None:
        return
    present = await _credentials(resources.SECRET_BINDING, before, review, garden)
    wanted = await _credentials(resources.CREDENTIALS_BINDING, after, review, garden)
    if present is not None and wanted is not None and present != wanted:
        # The author may have no right to read the Secret, so the message does not name it.
        raise Refusal.forbidden(
            review,
            f"spec.credentialsBindingName: {after} is for other credentials than SecretBinding {before}: "
            "name a CredentialsBinding for the same Secret",
        )


async def _credentials(kind: resources.Resource, name: str, review: Review, garden: Garden) -> Credentials | None:
    """Credentials of a binding; None if there is no such binding, which another check refuses."""
    binding = await garden.find(kind, name, review.namespace)
    return BINDINGS[kind].credentials(binding) if binding is not None else None
