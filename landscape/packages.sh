#!/bin/sh
# Install the Debian packages whose commands are missing, and say so. Nothing is installed that is there.
set -eu

missing=""
# command (or file) and the package that brings it
while read -r command package; do
    case "$command" in
        /*) [ -e "$command" ] || [ -e "/opt/cni/bin/$(basename "$command")" ] || missing="$missing $package" ;;
        *) PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null 2>&1 || missing="$missing $package" ;;
    esac
done <<LIST
containerd containerd
runc runc
/usr/lib/cni/bridge containernetworking-plugins
iptables iptables
conntrack conntrack
ip iproute2
nsenter util-linux
mount mount
knotd knot
debootstrap debootstrap
LIST

[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "missing Debian packages:$missing" >&2
    echo "run this as root (sudo make ...): it installs them, and a landscape needs root anyway" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing:$missing (names of Debian packages)" >&2
    echo "there is no apt-get here: install what corresponds to them, then try again" >&2
    exit 1
fi

echo "installing Debian packages:$missing"
# Packages of servers start them at once; ours run only inside a landscape.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; }
