"""Names of the images that Kubernetes' conformance tests run in pods.

They are the names in the tests of Kubernetes 1.37.1. Our images have the same commands and users, not the same files:
Debian in place of Alpine, and programs of the versions that the landscape has anyway.
"""

_TESTS = "registry.k8s.io/e2e-test-images"

AGNHOST = f"{_TESTS}/agnhost:2.66.1"
AGNHOST_BEFORE = f"{_TESTS}/agnhost:2.55"
"""The image of pods that a test updates to ``AGNHOST``."""
BUSYBOX = f"{_TESTS}/busybox:1.37.0-2"
ETCD = "registry.k8s.io/etcd:3.7.0-0"
GLIBC_DNS = f"{_TESTS}/glibc-dns-testing:2.1.1"
KITTEN = f"{_TESTS}/kitten:1.8"
NAUTILUS = f"{_TESTS}/nautilus:1.8"
NGINX = f"{_TESTS}/nginx:1.27.0-2"
NGINX_NEW = f"{_TESTS}/nginx:1.28.0-2"
NONEWPRIVS = f"{_TESTS}/nonewprivs:1.4"
NONROOT = f"{_TESTS}/nonroot:1.5"
PAUSE = "registry.k8s.io/pause:3.10.2"
SAMPLE_APISERVER = f"{_TESTS}/sample-apiserver:1.29.2"

ALL = frozenset(
    (
        AGNHOST, AGNHOST_BEFORE, BUSYBOX, ETCD, GLIBC_DNS, KITTEN, NAUTILUS, NGINX, NGINX_NEW, NONEWPRIVS, NONROOT,
        PAUSE, SAMPLE_APISERVER,
    )
)  # fmt: skip
