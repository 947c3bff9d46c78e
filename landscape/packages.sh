#!/bin/sh
# Install the Debian packages whose commands are missing, and print them. Installed packages are left unchanged.
#   packages.sh python     packages for a virtual environment
#   packages.sh browser    Chromium, with which tests open the Temporal UI
#   packages.sh engine     a container engine and docker-compose, if there is none
#   packages.sh gvisor     gVisor, which machines of a landscape may offer to pods
#   packages.sh            packages for a landscape
#   packages.sh container  packages for a landscape in an empty container: all of the above except an engine and gVisor
set -eu
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

usable_python() {
    for each in python3.14 python3.13 python3.12 python3.11 python3; do
        "$each" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return 0
    done
    return 1
}

missing=""
if [ "${1-}" = python ]; then
    usable_python || missing="python3 python3-venv"
elif [ "${1-}" = browser ]; then
    command -v chromedriver >/dev/null 2>&1 || missing="chromium chromium-driver"
elif [ "${1-}" = gvisor ]; then
    command -v runsc >/dev/null 2>&1 || missing="runsc"
elif [ "${1-}" = engine ]; then
    # An engine from another source is good enough; then only docker-compose may be missing.
    docker info >/dev/null 2>&1 || command -v dockerd >/dev/null 2>&1 || missing="docker.io"
    command -v docker-compose >/dev/null 2>&1 || missing="$missing docker-compose"
else
    further=""
    if [ "${1-}" = container ]; then
        usable_python || missing="python3 python3-venv"
        further="make make
modprobe kmod
/etc/ssl/certs/ca-certificates.crt ca-certificates"
    fi
    # command (or file) and the package that brings it
    while read -r command package; do
        case "$command" in
            "") ;;
            /*) [ -e "$command" ] || [ -e "/opt/cni/bin/$(basename "$command")" ] || missing="$missing $package" ;;
            *) command -v "$command" >/dev/null 2>&1 || missing="$missing $package" ;;
        esac
    done <<LIST
containerd containerd
runc runc
/usr/lib/cni/bridge containernetworking-plugins
iptables iptables
nft nftables
conntrack conntrack
ip iproute2
nsenter util-linux
mount mount
knotd knot
mkfs.xfs xfsprogs
ssh openssh-client
debootstrap debootstrap
$further
LIST
fi
missing=${missing# }
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "missing Debian packages: $missing" >&2
    echo "run this as root (sudo make ...): it installs them, and a landscape needs root anyway" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing: $missing (names of Debian packages)" >&2
    echo "there is no apt-get here: install what corresponds to them, then try again" >&2
    exit 1
fi

echo "installing Debian packages: $missing"
# Packages of servers start them at once; ours run only inside a landscape.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install() {
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
install 2>/dev/null || { apt-get update -qq && install; } || {
    echo "apt-get could not install them: see above" >&2
    exit 1
}
if [ "${1-}" = python ] && ! usable_python; then
    echo "this system's Python is older than 3.11: install a newer one, for example with pyenv or uv" >&2
    exit 1
fi
