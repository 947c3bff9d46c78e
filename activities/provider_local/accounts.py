"""Buckets and users of an S3 store, by the APIs of S3 and IAM as AWS has them.

A user has a path, by which another user may be allowed to manage it: ``/backups/<bucket>/`` is the path of the etcds
that have backups in a bucket. Calls block, since botocore has no others: run them in a thread.
"""

import contextlib
import json
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import get_cert_path

from activities.errors import permanent, transient
from api.errors import ErrorCode
from etcd import endpoint, s3

IAM_ENDPOINT = "iamEndpoint"
"""Address of IAM, which AWS has at another host than S3."""

_IAM_REGION = "us-east-1"
"""IAM has one region everywhere, which is part of each signature."""
_POLICY = "backups"
_OVERLAP = timedelta(hours=1)
"""Time for which a user's earlier key stays valid: its holder must have read the new one by then."""
_ABANDONED = timedelta(days=1)
"""Age at which an upload that was not completed is removed."""
_KEYS_OF_USER = 2
_WRONG_KEY = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidClientTokenId"}
_CONFIG = botocore.config.Config(
    connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 2}, s3={"addressing_style": "path"}, proxies={}
)
_FILES: list[Any] = []
_CREATING = threading.Lock()
"""A session of botocore creates one client at a time."""


@dataclass(frozen=True)
class User:
    """A user, by its name, which is unique in the store, its path and its rights."""

    name: str
    path: str
    statements: Sequence[Mapping[str, Any]]

    @property
    def policy(self) -> str:
        return json.dumps({"Version": "2012-10-17", "Statement": list(self.statements)}, sort_keys=True)


def rights_in(bucket: str) -> list[dict[str, Any]]:
    """Rights of a user that manages a bucket: everything in it, and its etcds' users."""
    actions = ("Create", "Get", "Delete")
    of_users = [f"iam:{each}User" for each in actions] + ["iam:PutUserPolicy", "iam:DeleteUserPolicy"]
    of_keys = [f"iam:{each}" for each in ("CreateAccessKey", "DeleteAccessKey", "ListAccessKeys")]
    return [
        _allow(["s3:*"], f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"),
        _allow(of_users + of_keys, f"arn:aws:iam::*:user{path_of(bucket)}*"),
    ]


def rights_below(bucket: str, directory: str) -> list[dict[str, Any]]:
    """Rights of one etcd: the objects whose names begin with ``<directory>/``, and no others."""
    objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    listing = _allow(["s3:ListBucket"], f"arn:aws:s3:::{bucket}")
    return [
        _allow(objects, f"arn:aws:s3:::{bucket}/{directory}/*"),
        listing | {"Condition": {"StringLike": {"s3:prefix": f"{directory}/*"}}},
    ]


def path_of(bucket: str) -> str:
    """Path of the users that have backups in a bucket."""
    return f"/backups/{bucket}/"


def _allow(actions: Sequence[str], *resources: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": list(resources)}


class Account:
    """Requests that the holder of an access key sends to a store.

    Each method raises ApplicationError: a final one if only an operator can fix the cause.
    """

    def __init__(self, credentials: Mapping[str, str], place: str) -> None:
        """``place``: where the credentials are from, for errors."""
        self._place = place
        values = {key: value.strip() for key, value in credentials.items()}
        needed = (s3.ACCESS_KEY, s3.SECRET_KEY, s3.ENDPOINT, IAM_ENDPOINT)
        if missing := [key for key in needed if not values.get(key)]:
            raise permanent(ErrorCode.CONFIGURATION_PROBLEM, f"{place} lacks {', '.join(missing)}")
        for key in (s3.ENDPOINT, IAM_ENDPOINT):
            if fault := endpoint.fault_of(values[key], values.get(endpoint.ALLOW_PLAIN)):
                raise permanent(ErrorCode.CONFIGURATION_PROBLEM, f"{place}: {fault}")
        self._values = values

    @property
    def key_id(self) -> str:
        return self._values[s3.ACCESS_KEY]

    def make_bucket(self, bucket: str) -> None:
        """Create a bucket, or find it, and remove uploads to it that were abandoned."""
        client = self._client("s3")
        with self._explained(f"making bucket {bucket}"):
            try:
                # Not HeadBucket, whose errors say no reason. Not CreateBucket first: it fails for a bucket that an
                # earlier version of the landscape has made.
                client.list_objects_v2(Bucket=bucket, MaxKeys=1)
            except client.exceptions.NoSuchBucket:
                with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                    client.create_bucket(Bucket=bucket, **self._location())
        with self._explained(f"removing abandoned uploads to bucket {bucket}"):
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
                for upload in page.get("Uploads") or ():
                    if datetime.now(UTC) - upload["Initiated"] > _ABANDONED:
                        client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def delete_bucket(self, bucket: str) -> None:
        """Delete a bucket with all its objects, and the users that have backups in it; a second run finds none."""
        client = self._client("s3")
        with self._explained(f"deleting bucket {bucket}"):
            try:
                for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
                    for upload in page.get("Uploads") or ():
                        client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                    if objects := [{"Key": each["Key"]} for each in page.get("Contents") or ()]:
                        client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
                client.delete_bucket(Bucket=bucket)
            except client.exceptions.NoSuchBucket:
                pass
        iam = self._client("iam")
        with self._explained(f"deleting the users of bucket {bucket}"):
            names = [
                user["UserName"]
                for page in iam.get_paginator("list_users").paginate(PathPrefix=path_of(bucket))
                for user in page["Users"]
            ]
        for name in names:
            self.delete_user(name)

    def delete_user(self, name: str) -> None:
        """Delete a user with its keys; a user that does not exist counts as deleted."""
        client = self._client("iam")
        with self._explained(f"deleting user {name}"):
            try:
                for key in client.list_access_keys(UserName=name)["AccessKeyMetadata"]:
                    client.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
                with contextlib.suppress(client.exceptions.NoSuchEntityException):
                    client.delete_user_policy(UserName=name, PolicyName=_POLICY)
                client.delete_user(UserName=name)
            except client.exceptions.NoSuchEntityException:
                pass
            except ClientError as error:
                # A key for the users of one path gets this answer also where no user of this name exists.
                if _code_of(error) != "AccessDenied" or self._exists(client, name):
                    raise

    def key_of(self, user: User, held: str, *, renew: bool) -> tuple[str, str] | None:
        """A new key of a user, which is created if it does not exist; None if the key ``held`` is to stay.

        ``held``: id of the key that the user's holder has, empty if it has none. ``renew``: replace this key. It is not
        removed by that, because its holder reads the new one later. If a run loses its new key before it was stored,
        the next run removes that key.
        """
        client = self._client("iam")
        with self._explained(f"making user {user.name}"):
            with contextlib.suppress(client.exceptions.EntityAlreadyExistsException):
                client.create_user(UserName=user.name, Path=user.path)
            client.put_user_policy(UserName=user.name, PolicyName=_POLICY, PolicyDocument=user.policy)
            keys = client.list_access_keys(UserName=user.name)["AccessKeyMetadata"]
            current = next((key for key in keys if key["AccessKeyId"] == held), None)
            others = sorted((key for key in keys if key is not current), key=lambda key: key["CreateDate"])
            if current is not None and not renew:
                if datetime.now(UTC) - current["CreateDate"] > _OVERLAP:
                    self._delete_keys(client, user, others)
                return None
            # The last one stays.
            ordered = [*others, *([current] if current else [])]
            self._delete_keys(client, user, ordered[: max(0, len(keys) - _KEYS_OF_USER + 1)])
            made = client.create_access_key(UserName=user.name)["AccessKey"]
            return made["AccessKeyId"], made["SecretAccessKey"]

    def _exists(self, client: Any, name: str) -> bool:
        try:
            client.get_user(UserName=name)
        except ClientError as error:
            if _code_of(error) not in ("AccessDenied", "NoSuchEntity"):
                raise
            return False
        return True

    def _delete_keys(self, client: Any, user: User, keys: Sequence[Mapping[str, Any]]) -> None:
        for key in keys:
            client.delete_access_key(UserName=user.name, AccessKeyId=key["AccessKeyId"])

    def _location(self) -> dict[str, Any]:
        """AWS takes the region of a new bucket from the body, in all regions but the first, which it refuses there."""
        region = self._values.get(s3.REGION)
        if not region or region == _IAM_REGION:
            return {}
        return {"CreateBucketConfiguration": {"LocationConstraint": region}}

    def _client(self, service: str) -> Any:
        of_iam = service == "iam"
        with _CREATING:
            return _session().create_client(
                service,
                region_name=_IAM_REGION if of_iam else self._values.get(s3.REGION) or _IAM_REGION,
                endpoint_url=self._values[IAM_ENDPOINT if of_iam else s3.ENDPOINT],
                aws_access_key_id=self._values[s3.ACCESS_KEY],
                aws_secret_access_key=self._values[s3.SECRET_KEY],
                verify=_trusted(self._values.get(s3.CA, "")),
                config=_CONFIG,
            )

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Failures with a code for operators; their texts hold S3's code alone, since others name keys."""
        try:
            yield
        except ClientError as error:
            code, status = _code_of(error), error.response["ResponseMetadata"]["HTTPStatusCode"]
            said = f"{doing}: the object store answered {status} {code}"
            if code in _WRONG_KEY or status == 401:
                reason = f"it does not know the key in {self._place}"
                raise permanent(ErrorCode.INFRA_UNAUTHENTICATED, f"{said}: {reason}") from None
            if status == 403:
                reason = f"the key in {self._place} has no right to that"
                raise permanent(ErrorCode.INFRA_UNAUTHORIZED, f"{said}: {reason}") from None
            raise transient(ErrorCode.RETRYABLE_INFRA_DEPENDENCIES, said) from None
        except BotoCoreError as error:
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
                f"{doing}: the object store does not answer ({type(error).__name__})",
            ) from None


def _code_of(error: ClientError) -> str:
    return str(error.response["Error"].get("Code", ""))


@cache
def _trusted(certificates: str) -> str | None:
    """File with the public authorities and the given ones; None, which stands for the public ones, without any given.

    botocore reads authorities from a file alone. The file is deleted when the process ends.
    """
    if not certificates:
        return None
    file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115 -- open until the process ends
    _FILES.append(file)  # which would delete the file when nothing refers to it
    file.write(f"{Path(get_cert_path(True)).read_text()}\n{certificates}\n")
    file.flush()
    return file.name


@cache
def _session() -> Any:
    return botocore.session.Session()
